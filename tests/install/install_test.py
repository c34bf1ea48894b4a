"""A project outside the tree is built against what `cmake --install` leaves, and runs. Arguments: cmake, the source tree,
the build tree."""

import pathlib
import shutil
import sys
import unittest

from installation import Installation

CMAKE, SOURCE, BUILD = sys.argv[1], pathlib.Path(sys.argv[2]), pathlib.Path(sys.argv[3])
PROJECT = SOURCE / "examples/project"
RESULT = "4 5 0 0\n"


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.kiln = Installation(CMAKE, BUILD)
        cls.addClassCleanup(cls.kiln.remove)

    def test_a_project_finds_it_by_cmake(self):
        build = self.kiln.folder / "by_cmake"
        self.kiln.run([CMAKE, "-S", PROJECT, "-B", build, f"-DCMAKE_PREFIX_PATH={self.kiln.prefix}"])
        self.kiln.run([CMAKE, "--build", build])
        self.assertEqual(self.kiln.run([build / "layer"]), RESULT)

    def test_a_project_that_wants_a_later_version_does_not_find_it(self):
        project = self.kiln.folder / "later"
        project.mkdir()
        (project / "CMakeLists.txt").write_text("cmake_minimum_required(VERSION 3.25)\nproject(later LANGUAGES CXX)\n"
                                                "find_package(Kiln 99 REQUIRED)\n")
        result = self.kiln.try_to_run([CMAKE, "-S", project, "-B", project / "build",
                                       f"-DCMAKE_PREFIX_PATH={self.kiln.prefix}"])
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("KilnConfig.cmake, version: 0.1", result.stderr)

    @unittest.skipUnless(shutil.which("pkg-config"), "there is no pkg-config")
    def test_a_project_finds_it_by_pkg_config(self):
        path = {"PKG_CONFIG_PATH": str(next(self.kiln.prefix.glob("lib*/**/pkgconfig")))}
        flags = self.kiln.run(["pkg-config", "--cflags", "--libs", "kiln"], **path).split()
        library = self.kiln.run(["pkg-config", "--variable=libdir", "kiln"], **path).strip()
        program = self.kiln.folder / "by_pkg_config"
        self.kiln.run(["c++", "-std=c++20", PROJECT / "layer.cc", *flags, f"-Wl,-rpath,{library}", "-o", program])
        self.assertEqual(self.kiln.run([program]), RESULT)

    def test_the_header_is_plain_c(self):
        source = self.kiln.folder / "plain.c"
        source.write_text("#include <kiln.h>\nint main(void) { return kiln_version() == 0; }\n")
        self.kiln.run(["cc", "-std=c11", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I",
                       self.kiln.prefix / "include", source])

    def test_programs_find_one_another(self):
        for program in ("kilnd", "kiln-worker", "kiln-executor", "kiln-device-executor"):
            self.assertTrue((self.kiln.prefix / "libexec/kiln" / program).is_file(), program)
        said = self.kiln.try_to_run([self.kiln.prefix / "bin/kiln", "doctor"]).stdout  # it may find fault with this host
        self.assertIn("libexec/kiln/kilnd", said)

    def test_the_manual_and_completion_are_where_man_and_shells_look(self):
        share = self.kiln.prefix / "share"
        self.assertTrue((share / "man/man1/kiln-pack-create.1").is_file())
        self.assertIn("complete -o default -F _kiln kiln", (share / "bash-completion/completions/kiln").read_text())
        self.assertTrue((share / "zsh/site-functions/_kiln").read_text().startswith("#compdef kiln\n"))

    @unittest.skipUnless(shutil.which("systemd-analyze"), "there is no systemd-analyze")
    def test_systemd_understands_its_units(self):
        units = self.kiln.prefix / "lib/systemd"
        for scope, names in (("user", ["kiln.socket", "kiln.service"]), ("system", ["kiln@root.socket", "kiln@root.service"])):
            result = self.kiln.try_to_run(["systemd-analyze", f"--{scope}", "--man=no", "verify",
                                           *(units / scope / name for name in names)], SYSTEMD_LOG_LEVEL="warning",
                                          SYSTEMD_UNIT_PATH=f"{units / scope}:", XDG_RUNTIME_DIR=str(self.kiln.folder))
            self.assertEqual((result.returncode, result.stderr), (0, ""), scope)

    def test_the_wheels_files_are_not_among_them(self):
        self.assertEqual(list(self.kiln.prefix.glob("kiln/*")), [])


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
