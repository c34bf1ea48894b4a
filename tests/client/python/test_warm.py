"""kiln warm --torch, as an administrator runs it: one process warms, the next one finds everything mapped."""
import json
import os
import pathlib
import subprocess
import sys

import pytest

FOLDER = pathlib.Path(__file__).parent
KILN = pathlib.Path(os.environ["KILN_DAEMON_PATH"]).with_name("kiln")


@pytest.fixture
def kiln(tmp_path):
    environment = {**os.environ, "KILN_CACHE_DIR": str(tmp_path / "cache"), "XDG_STATE_HOME": str(tmp_path / "state"),
                   "KILN_PYTHON_PATH": sys.executable, "KILN_DAEMON_START_TIMEOUT_MS": "20000"}

    def run(*arguments, **variables):
        return subprocess.run([KILN, *arguments], env={**environment, **variables}, cwd=FOLDER, capture_output=True,
                              text=True)

    yield run
    run("daemon", "stop")


def stats(result):
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)["stats"]


@pytest.mark.parametrize("flags", [[], ["--train"], ["--whole"]])
def test_the_second_process_compiles_nothing(kiln, flags):
    cold = stats(kiln("warm", "--torch", "warmed:make", "--json", *flags))
    assert cold["compilations"] > 0 and cold["nodes_compiled"] > 0
    kiln("daemon", "stop")
    warm = stats(kiln("warm", "--torch", "warmed:make", "--json", *flags, KILN_NO_DAEMON="1"))
    assert warm["compilations"] == 0 and warm["misses"] == 0 and warm["hits_mapped"] > 0


def test_entries_are_called_by_the_modules_class(kiln):
    stats(kiln("warm", "--torch", "warmed:make", "--json"))
    entries = json.loads(kiln("ls", "--kind", "program", "--json").stdout)["entries"]
    names = [head["name"] for entry in entries for head in entry["heads"]]
    assert names and all(": " in name and " -> f32[" in name for name in names), names
    assert {name.split(":")[0] for name in names} == {"Sequential"}, names


def test_readonly_keeps_nothing_and_recache_makes_everything_again(kiln, tmp_path):
    def warm(**variables):
        return stats(kiln("warm", "--torch", "warmed:make", "--json", **variables))

    def kept():
        return {entry["digest"]: entry["created_ms"] for entry in json.loads(kiln("ls", "--json").stdout)["entries"]}

    unkept = warm(KILN_READONLY="1")
    assert unkept["compilations"] > 0 and unkept["nodes_compiled"] > 0 and kept() == {}
    first = warm()
    assert first["compilations"] == unkept["compilations"]
    before = kept()
    assert warm()["compilations"] == 0
    again = warm(KILN_RECACHE="1")
    assert again["compilations"] == first["compilations"] and again["nodes_compiled"] == first["nodes_compiled"]
    assert kept().keys() >= before.keys()


def test_programs_are_checked_against_torch_whatever_is_configured(kiln):
    for _ in range(2):  # and whatever is known of them
        warmed = stats(kiln("warm", "--torch", "warmed:make", "--json", KILN_CLIENT_CHECK="never"))
        assert warmed["checked"] == warmed["programs"] > 0 and warmed["checks_failed"] == 0


def test_inputs_may_be_keywords_and_graphs_are_built_for_the_targets_named(kiln):
    warmed = kiln("warm", "--torch", "warmed:make_with_keywords", "--json", "--target", "x86-64-v2,x86-64-v3")
    assert stats(warmed)["nodes_compiled"] > 0
    for target in ("x86-64-v2", "x86-64-v3"):
        assert json.loads(kiln("ls", "--target", target, "--kind", "program", "--json").stdout)["matched"] > 0
    assert kiln("warm", "--torch", "warmed:make", "--target", "x86-64-v9").returncode == 1


def test_a_pack_serves_a_module_and_says_what_it_lacks(kiln, tmp_path):
    pack, keys = tmp_path / "made.kpack", tmp_path / "keys"
    assert kiln("key", "create", keys).returncode == 0
    stats(kiln("warm", "--torch", "warmed:make", "--train", "--json", "--pack", pack, "--sign", keys / "kiln.key"))
    trust = {"KILN_PACKS_TRUST_CAPTURES": str(keys)}
    whole = kiln("pack", "verify", pack, "--expect", "warmed:make", "--train", "--json", **trust)
    counts = json.loads(whole.stdout)
    assert whole.returncode == 0 and counts["got"] == counts["expected"] > 0, (counts, whole.stderr)
    short = kiln("pack", "verify", pack, "--expect", "warmed:make_with_keywords", "--json", **trust)
    counts = json.loads(short.stdout)
    assert short.returncode == 6 and counts["got"] < counts["expected"]
    assert [part["part"] for part in counts["missed"][0]["nearest"]["differs"]] == ["graph"]


def test_a_manifest_warms_each_mode_and_shape_of_a_model(kiln, tmp_path):
    manifest = tmp_path / "manifest.yaml"
    manifest.write_text("models: [{source: 'warmed:make_of_batch', modes: [infer, train], shapes: [{batch: 3}, {batch: 6}]}]\n")
    cold = kiln("warm", manifest, "--json")
    assert cold.returncode == 0, cold.stderr
    rows = json.loads(cold.stdout)["models"]
    assert [(row["mode"], row["shape"]["batch"]) for row in rows] == [("infer", 3), ("infer", 6), ("train", 3), ("train", 6)]
    assert all(row["stats"]["programs"] > 0 for row in rows) and rows[0]["compilations"] > 0
    warm = json.loads(kiln("warm", manifest, "--json", KILN_NO_DAEMON="1").stdout)
    assert (warm["warmed"], warm["compilations"]) == (4, 0)


def test_where_hits_are_required_a_miss_ends_the_process(kiln):
    result = kiln("warm", "--torch", "warmed:make", KILN_REQUIRE_HIT="1")
    assert result.returncode == 1 and "MissingProgram" in result.stderr


@pytest.mark.parametrize("source", ["warmed:nothing", "nowhere:make", "warmed:make_nonsense"])
def test_what_cannot_be_loaded_is_exit_1(kiln, source):
    result = kiln("warm", "--torch", source)
    assert result.returncode == 1 and "no answer" in result.stderr


def test_a_source_without_a_function_is_exit_2(kiln):
    assert kiln("warm", "--torch", "warmed").returncode == 2


def test_a_daemon_that_a_client_in_python_starts_searches_that_pythons_packages(kiln):
    folder = str(pathlib.Path(sys.executable).parent)
    unconfigured = {"KILN_PYTHON_PATH": "", "PATH": f"{folder}:{os.environ['PATH']}"}
    stats(kiln("warm", "--torch", "warmed:make", "--json", **unconfigured))
    daemon = json.loads(kiln("status", "--json", **unconfigured).stdout)["pid"]
    setting = next(a for a in pathlib.Path(f"/proc/{daemon}/cmdline").read_text().split("\0") if "python.path" in a)
    assert setting.startswith(f"python.path={folder}/")
