"""What the tests of the scripts share."""
import contextlib
import importlib.util
import io
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent


def load(path):
    """A script of the project as a module."""
    spec = importlib.util.spec_from_file_location("script_" + path.replace("/", "_").removesuffix(".py"), ROOT / path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def printed(function, *arguments):
    """(result, what it printed)"""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        result = function(*arguments)
    return result, out.getvalue()


class InFolder(unittest.TestCase):
    """A test with a temporary folder of its own."""

    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = Path(temporary.name).resolve()

    def write(self, name, text):
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def fake_memest(self, body):
        """A program in memest's place, from Python statements."""
        path = self.write("bin/memest", f"#!{sys.executable}\nimport json, os, sys\nfrom pathlib import Path\narguments = sys.argv[1:]\n{body}\n")
        path.chmod(0o755)
        return path
