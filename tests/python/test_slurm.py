"""Where srun has put the ranks, read from its variables alone."""
import unittest

from shoal import _slurm, run

# As srun -N 2 -n 5 sets them for its last task.
STEP = {"SLURM_PROCID": "4", "SLURM_STEP_NUM_TASKS": "5", "SLURM_LOCALID": "1", "SLURM_NODEID": "1", "SLURM_STEP_TASKS_PER_NODE": "3,2",
        "SLURM_STEP_NODELIST": "n[08-09]", "SLURM_JOB_ID": "77", "SLURM_STEP_ID": "0"}


def place(variables, *options):
    words = ["-m", "json.tool"]
    parsed = run.parser().parse_args([*options, *words])
    return run.place_of(parsed, variables)


class NodeLists(unittest.TestCase):
    def test_every_form(self):
        for text, names in (("n1", ["n1"]), ("n1,m2", ["n1", "m2"]), ("n[1-3]", ["n1", "n2", "n3"]),
                            ("n[08-11]", ["n08", "n09", "n10", "n11"]), ("n[1,3-4],m", ["n1", "n3", "n4", "m"]),
                            ("r[1-2]n[01-02]", ["r1n01", "r1n02", "r2n01", "r2n02"]), ("gpu-[7]-ib,x.y", ["gpu-7-ib", "x.y"]),
                            ("n[098-101]", ["n098", "n099", "n100", "n101"])):
            self.assertEqual(_slurm.expand(text), names, text)

    def test_what_is_none(self):
        for text in ("", "n[1", "n1]", "n[]", "n[a-b]", "n[3-1]", "n1,,n2", ",n", "n 1", "n[1-999999]", "n[1-]", "n[1-90000][1-90000]"):
            with self.assertRaises(ValueError, msg=text):
                _slurm.expand(text)

    def test_tasks(self):
        self.assertEqual(_slurm.tasks_of_nodes("2(x3),1"), [2, 2, 2, 1])
        for text in ("", "2(x)", "2,,1", "two"):
            with self.assertRaises(ValueError, msg=text):
                _slurm.tasks_of_nodes(text)


class Places(unittest.TestCase):
    def test_a_task_is_a_rank(self):
        found = place(STEP)
        self.assertEqual((found.first, found.count, found.world, found.local_first, found.local_world), (4, 1, 5, 1, 2))
        self.assertEqual((found.node, found.nodes, found.address), (1, 2, "n08"))
        self.assertTrue(20_000 <= found.port < 30_000)
        self.assertEqual(found.port, place({**STEP, "SLURM_PROCID": "0", "SLURM_LOCALID": "0", "SLURM_NODEID": "0"}).port)
        self.assertNotEqual(found.port, place({**STEP, "SLURM_STEP_ID": "1"}).port)

    def test_a_task_is_a_launcher(self):
        found = place({**STEP, "SLURM_PROCID": "1", "SLURM_STEP_NUM_TASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_TASKS_PER_NODE": "1(x2)"},
                      "--nproc", "4")
        self.assertEqual((found.first, found.count, found.world, found.local_first, found.local_world), (4, 4, 8, 0, 4))

    def test_what_is_set_by_hand_counts(self):
        found = place({**STEP, "MASTER_ADDR": "h", "MASTER_PORT": "7"})
        self.assertEqual((found.address, found.port), ("h", 7))
        job_list = {name: value for name, value in STEP.items() if name != "SLURM_STEP_NODELIST"}
        self.assertEqual(place({**job_list, "SLURM_JOB_NODELIST": "m[3,1]"}).address, "m3")

    def test_a_batch_script_is_no_task(self):
        batch = {"SLURM_PROCID": "0", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_NODEID": "0"}
        self.assertEqual(place(batch, "--nproc", "3").world, 3)

    def test_what_is_broken(self):
        for name, value, says in (("SLURM_LOCALID", None, "SLURM_LOCALID is not set"), ("SLURM_NODEID", "2", "has no node 2"),
                                  ("SLURM_STEP_NODELIST", "n[1", "no list of nodes"), ("SLURM_PROCID", "x", "broken")):
            broken = {key: each for key, each in STEP.items() if key != name}
            with self.assertRaisesRegex(ValueError, says):
                place(broken if value is None else {**broken, name: value})


if __name__ == "__main__":
    unittest.main()
