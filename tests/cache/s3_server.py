#!/usr/bin/env python3
"""An S3 server on loopback that checks signatures, with a bucket "kiln": s3_server.py PORT FILE. FILE gets the key, as id:secret."""
import json
import logging
import os
import pathlib
import sys

os.environ["INITIAL_NO_AUTH_ACTION_COUNT"] = "0"
from moto.core import DEFAULT_ACCOUNT_ID  # noqa: E402
from moto.iam.models import iam_backends  # noqa: E402
from moto.s3.models import s3_backends  # noqa: E402
from moto.server import main  # noqa: E402


def prepare():
    iam = iam_backends[DEFAULT_ACCOUNT_ID]["aws"]
    iam.create_user("us-east-1", "host")
    policy = {"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}
    iam.put_user_policy("host", "all", json.dumps(policy))
    s3_backends[DEFAULT_ACCOUNT_ID]["aws"].create_bucket("kiln", "us-east-1")
    return iam.create_access_key("host")


port, file = int(sys.argv[1]), pathlib.Path(sys.argv[2])
key = prepare()
file.touch(0o600)
file.write_text(f"{key.access_key_id}:{key.secret_access_key}\n")
logging.getLogger("werkzeug").setLevel(logging.ERROR)
main(["-H", "127.0.0.1", "-p", str(port)])
