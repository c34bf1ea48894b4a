"""Debian packages of this build are installed, used and purged, over a copy of this host that nobody else sees. Arguments:
cmake's cpack, the source tree, the build tree."""

import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

CPACK, SOURCE, BUILD = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
SKIPPED = 77
PACKAGES = ("kiln", "libkiln0", "libkiln-dev")

# A layer over the root that lies in memory: what dpkg does there is gone with the namespace.
INSIDE = r"""
set -e
mount -t tmpfs tmpfs "$LAYERS"
mkdir "$LAYERS"/upper "$LAYERS"/work "$LAYERS"/root
mount -t overlay overlay -o lowerdir=/,upperdir="$LAYERS"/upper,workdir="$LAYERS"/work "$LAYERS"/root || exit 77
mount --bind "$SHARED" "$LAYERS"/root/mnt
for folder in proc dev sys; do mount --rbind /$folder "$LAYERS"/root/$folder; done
chroot "$LAYERS"/root bash -e /mnt/use
"""
USE = r"""
export PATH=/usr/sbin:/usr/bin:/sbin:/bin KILN_CACHE_DIR=/root/kiln-cache XDG_STATE_HOME=/root/kiln-state KILN_DAEMON_START_TIMEOUT_MS=20000
before=$(find /usr /etc -xdev | sort)
dpkg -i /mnt/*.deb
ldconfig -p | grep -q libkiln.so.0
cmake -S /mnt/project -B /root/layer && cmake --build /root/layer
test "$(/root/layer/layer)" = "4 5 0 0"
kiln --version
kiln doctor | grep libexec/kiln/kiln-worker
kiln daemon stop
dpkg -P kiln libkiln0 libkiln-dev
test ! -e /usr/bin/kiln
after=$(find /usr /etc -xdev | sort)
diff <(echo "$before") <(echo "$after") | grep -i kiln && exit 1
echo "installed, used, purged"
"""


class Packages(unittest.TestCase):
    def test_they_install_are_of_use_and_leave_nothing(self):
        shared, layers = (pathlib.Path(tempfile.mkdtemp(prefix="kiln-packages-")) for _ in range(2))
        self.addCleanup(shutil.rmtree, shared)
        self.addCleanup(shutil.rmtree, layers)
        subprocess.run([CPACK, "--config", BUILD / "CPackConfig.cmake", "-B", shared], check=True, stdout=subprocess.DEVNULL)
        self.assertEqual(sorted(deb.name.split("_")[0] for deb in shared.glob("*.deb")), sorted(PACKAGES))
        shutil.rmtree(shared / "_CPack_Packages")
        shutil.copytree(SOURCE / "examples/project", shared / "project")
        (shared / "use").write_text(USE)
        kept = {name: value for name, value in os.environ.items() if not name.startswith("KILN_")}
        result = subprocess.run(["unshare", "-m", "bash", "-c", INSIDE], capture_output=True, text=True,
                                env=kept | {"SHARED": str(shared), "LAYERS": str(layers)})
        if result.returncode == SKIPPED:
            self.skipTest("no layer can be put over the root: " + result.stderr)
        self.assertEqual(result.returncode, 0, result.stdout[-4000:] + result.stderr[-4000:])
        self.assertIn("installed, used, purged", result.stdout)


if __name__ == "__main__":
    reason = ("dpkg and its tools are not there" if not (shutil.which("dpkg-shlibdeps") and shutil.which("dpkg")) else
              "it takes root to install packages" if os.geteuid() != 0 else None)
    if reason:
        print("skipped:", reason)
        sys.exit(SKIPPED)
    unittest.main(argv=sys.argv[:1])
