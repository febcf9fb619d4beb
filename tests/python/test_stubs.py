"""The type stubs say what the package has."""
import ast
import inspect
import pathlib
import re
import unittest

import shoal

STUB = ast.parse((pathlib.Path(__file__).resolve().parents[2] / "python/shoal/__init__.pyi").read_text())


def parameters_of_stub(function):
    """[(name, default as source)], without self"""
    a = function.args
    places = list(zip(a.args, [None] * (len(a.args) - len(a.defaults)) + a.defaults)) + list(zip(a.kwonlyargs, a.kw_defaults))
    return [(each.arg, default and ast.literal_eval(default)) for each, default in places if each.arg != "self"]


def parameters(function):
    """The same of the function itself; of one in C++ as pybind11 documents it."""
    try:
        found = inspect.signature(function).parameters.values()
        return [(each.name, None if each.default is each.empty else each.default) for each in found if each.name != "self"]
    except ValueError:
        [words] = re.findall(r"^\w+\((.*)\) ->", function.__doc__, re.M)
        found = re.findall(r"(\w+): [^=,]+(?: = ('[^']*'|[\w.]+))?(?:, |$)", words)
        return [(name, ast.literal_eval(default) if default else None) for name, default in found if name != "self"]


class Stubs(unittest.TestCase):
    def test_names(self):
        named = {each.name for each in STUB.body if isinstance(each, (ast.FunctionDef, ast.ClassDef))}
        self.assertEqual(named, set(shoal.__all__))
        [listed] = [each for each in STUB.body if isinstance(each, ast.Assign) and each.targets[0].id == "__all__"]
        self.assertEqual(ast.literal_eval(listed.value), shoal.__all__)

    def test_parameters(self):
        for each in STUB.body:
            own = getattr(shoal, each.name, None) if hasattr(each, "name") else None
            if isinstance(each, ast.FunctionDef):
                self.assertEqual(parameters(own), parameters_of_stub(each), each.name)
            elif isinstance(each, ast.ClassDef):
                for member in each.body:
                    if isinstance(member, ast.FunctionDef) and member.name == "__init__":
                        self.assertEqual(parameters(own.__init__), parameters_of_stub(member), each.name)
                    elif isinstance(member, ast.FunctionDef) and member.decorator_list:
                        self.assertIsInstance(inspect.getattr_static(own, member.name), property, member.name)
                    elif isinstance(member, ast.FunctionDef):
                        self.assertEqual(parameters(getattr(own, member.name)), parameters_of_stub(member), member.name)


if __name__ == "__main__":
    unittest.main()
