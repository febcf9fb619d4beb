"""shoal.ElasticGroup: members in processes of their own that join, leave and are killed; exceptions of an attempt."""
import importlib.util
import json
import pathlib
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest

import torch

import launched
import shoal

PROGRAM = pathlib.Path(__file__).resolve().parents[2] / "examples/15_elastic/elastic.py"
spec = importlib.util.spec_from_file_location("elastic_example", PROGRAM)
example = importlib.util.module_from_spec(spec)
spec.loader.exec_module(example)

LIMIT_S = 120


def state():
    return {"w": torch.zeros(3), "moment": torch.ones(2, 2, dtype=torch.float64)}


class OneMember(unittest.TestCase):
    def setUp(self):
        self.state = state()
        self.faults = []
        self.group = shoal.ElasticGroup(self.state, key="k", on_fault=self.faults.append)

    def doubled(self, view):
        number = torch.tensor([2.0])
        view.all_reduce(number)
        return {"w": self.state["w"] + number, "moment": self.state["moment"] * 2}, 4

    def test_a_step_changes_the_state_once(self):
        step = self.group.step(self.doubled)
        self.assertEqual((step.step, step.first_sample, step.samples, step.rank, step.attempts), (0, 0, 4, 0, 1))
        self.assertEqual(step.members, [self.group.id])
        self.assertEqual(self.state["w"].tolist(), [2, 2, 2])
        self.assertEqual(self.state["moment"].tolist(), [[2, 2], [2, 2]])
        self.assertEqual((self.group.next_step, self.group.samples, self.group.members), (1, 4, [self.group.id]))
        self.assertNotEqual(self.group.step(self.doubled).state, step.state)
        self.assertTrue(self.group.leave())

    def test_what_an_attempt_may_not_return(self):
        kept = []
        self.group.step(lambda view: (kept.append(view), self.doubled(view))[1])
        mistakes = {
            "the attempt must return (next state, samples)": lambda view: 1,
            "the attempt leads to a state with w Float [3], where the group's has moment Double [2, 2]": lambda view: ({"w": self.state["w"]}, 1),
            "with w Double [3], where the group's has w Float [3]": lambda view: ({**self.state, "w": self.state["w"].double()}, 1),
            "the attempt must return ({name: tensor}, number of samples)": lambda view: (self.state, -1),
            "this view's attempt has ended": lambda view: kept[0].all_reduce(torch.zeros(2)),
            "[all_reduce] takes contiguous tensors in host memory": lambda view: view.all_reduce(torch.zeros(4)[::2]),
            "[broadcast] root 1 of 1 members": lambda view: view.broadcast(torch.zeros(4), 1),
            "[all_gather] 2 elements of Float from 1 members do not fill 4 of Float": lambda view: view.all_gather(torch.zeros(4), torch.zeros(2)),
        }
        for text, attempt in mistakes.items():
            with self.assertRaises(RuntimeError) as raised:
                self.group.step(attempt)
            self.assertIn(text, str(raised.exception))
        self.assertEqual(self.state["w"].tolist(), [2, 2, 2])
        self.assertEqual(self.group.step(self.doubled).step, 1)

    def test_an_exception_of_an_attempt_is_raised_as_it_is(self):
        with self.assertRaises(ZeroDivisionError):
            self.group.step(lambda view: 1 / 0)
        self.assertEqual(self.group.step(self.doubled).step, 0)
        self.assertIn("ZeroDivisionError", self.faults[0])

    def test_arguments(self):
        for more, text in (({"tls": "maybe"}, "tls is auto, on or off, not 'maybe'"), ({"join": ["nowhere"]}, "'nowhere' is not a host and a port"),
                           ({"state": {"a": torch.zeros(4)[::2]}}, "'a' must be a contiguous tensor in host memory")):
            with self.assertRaises(RuntimeError) as raised:
                shoal.ElasticGroup(**{"state": state(), "key": "k", **more})
            self.assertIn(text, str(raised.exception))

    def refused(self, tensors, **more):
        """What a member is told that cannot join, while steps go on."""
        told = []

        def join():
            try:
                shoal.ElasticGroup(tensors, key="k", join=[self.group.endpoint], **more)
            except RuntimeError as error:
                told.append(str(error))

        thread = threading.Thread(target=join)
        thread.start()
        end = time.monotonic() + LIMIT_S
        while thread.is_alive() and time.monotonic() < end:
            self.group.step(self.doubled)
        thread.join(timeout=1)
        return told[0]

    def test_a_joiner_of_another_shape_is_told(self):
        self.assertIn("the state of the group has moment Double [2, 2], and this member's has w Float [4]", self.refused({"w": torch.zeros(4)}))

    def test_a_signal_ends_a_wait(self):
        self.group = shoal.ElasticGroup(self.state, key="k")
        before = signal.signal(signal.SIGALRM, signal.default_int_handler)
        self.addCleanup(signal.signal, signal.SIGALRM, before)
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        begun = time.monotonic()
        with self.assertRaises(KeyboardInterrupt):
            self.group.wait_for_members(2, LIMIT_S)
        self.assertLess(time.monotonic() - begun, LIMIT_S / 2)
        self.assertTrue(self.group.leave())

    def test_tokens(self):
        self.group = shoal.ElasticGroup(self.state, key="k", admission_secret="s", on_fault=self.faults.append)
        self.assertIn("token", self.refused(state()))
        self.assertIn("token", self.refused(state(), token=shoal.join_token("another", 60)))
        token, joined = shoal.join_token("s", 60), []
        thread = threading.Thread(target=lambda: joined.append(shoal.ElasticGroup(state(), key="k", join=[self.group.endpoint], token=token)))
        thread.start()
        self.group.wait_for_members(2, LIMIT_S)
        thread.join(LIMIT_S)
        self.assertEqual(sorted(joined[0].members), sorted(self.group.members))
        self.assertTrue(joined[0].leave())


def replayed(lineage):
    """The state that one process gets that adds up the same gradients in the same order."""
    model, optimizer = example.make_model()
    parameters = list(model.parameters())
    for step in lineage:
        sums, counted, first = None, torch.zeros(2), step["first_sample"]
        for _ in step["members"]:
            optimizer.zero_grad(set_to_none=False)
            counted += example.add_gradients(model, first, example.SAMPLES_OF_MEMBER)
            own = [parameter.grad.clone() for parameter in parameters]
            sums = own if sums is None else [a + b for a, b in zip(sums, own)]
            first += example.SAMPLES_OF_MEMBER
        assert first == step["first_sample"] + step["samples"]
        for parameter, gradient in zip(parameters, sums):
            parameter.grad = gradient
        example.update(model, optimizer, counted[1])
    return example.tensors_of(model, optimizer)


class Processes(unittest.TestCase):
    """The program of the example, as a user starts it."""

    def start(self, name, *words):
        log = open(self.folder / f"{name}.log", "w")
        self.addCleanup(log.close)
        process = subprocess.Popen([sys.executable, PROGRAM, "--lineage", self.folder / f"{name}.jsonl", "--save", self.folder / f"{name}.pt", "--suspect-after-s", "1", "--pause-ms", "20", *map(str, words)],
                                   env=launched.variables(OMP_NUM_THREADS="1"), stdout=log, stderr=subprocess.STDOUT)
        self.addCleanup(process.wait)
        self.addCleanup(process.kill)
        return process

    def lineage(self, name):
        path = self.folder / f"{name}.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    def until(self, what, holds):
        end = time.monotonic() + LIMIT_S
        while not holds():
            self.assertLess(time.monotonic(), end, what + "\n" + "\n".join(f"{log.name}: {log.read_text()}" for log in self.folder.glob("*.log")))
            time.sleep(0.02)

    def test_one_dies_one_joins_and_one_leaves(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        address = self.folder / "address"
        members = {"a": self.start("a", "--members", 3, "--address-file", address, "--steps", 1_000_000)}
        self.until("the first member's address", address.exists)
        contact = address.read_text().strip()
        members["b"] = self.start("b", "--join", contact, "--steps", 1_000_000)
        members["c"] = self.start("c", "--join", contact, "--steps", 1_000_000, "--die-at", 10)
        self.assertEqual(members["c"].wait(timeout=LIMIT_S), -signal.SIGKILL)
        members["d"] = self.start("d", "--join", contact, "--steps", 1_000_000)
        self.until("steps of the joiner", lambda: len(self.lineage("d")) > 5)
        self.until("steps without the one that died", lambda: len(self.lineage("a")[-1]["members"]) == 3)
        for name in ("b", "d", "a"):
            members[name].send_signal(signal.SIGTERM)
            self.assertEqual(members[name].wait(timeout=LIMIT_S), 0, (self.folder / f"{name}.log").read_text())
        whole = self.lineage("a")
        self.assertEqual([step["step"] for step in whole], list(range(len(whole))))
        sizes = [len(step["members"]) for step in whole]
        self.assertEqual((sizes[0], sizes[10]), (3, 2))
        self.assertIn(3, sizes[11:])
        for before, after in zip(whole, whole[1:]):
            self.assertEqual(before["first_sample"] + before["samples"], after["first_sample"])
        for name in ("b", "d"):
            own = self.lineage(name)
            self.assertEqual(own, whole[own[0]["step"]:own[0]["step"] + len(own)], name)
        saved = torch.load(self.folder / "a.pt")
        for name, tensor in replayed(whole).items():
            self.assertTrue(torch.equal(saved[name], tensor), name)


if __name__ == "__main__":
    unittest.main()
