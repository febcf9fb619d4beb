"""One rank of shoal.launch: `python -m shoal._call FOLDER`."""
import os
import pickle
import sys
from multiprocessing import spawn

import torch.distributed as dist

from shoal import _first_cause, _replace_gloo
from shoal._launch import dumps


def main(folder):
    _replace_gloo.install()
    _first_cause.install()
    with open(os.path.join(folder, "call"), "rb") as file:
        script, sys.path[:] = pickle.load(file)
        if script:
            # As multiprocessing does: the script runs with a __name__ that is not "__main__".
            spawn.prepare({"init_main_from_path": script})
        function, arguments = pickle.load(file)
    result = function(*arguments)
    if dist.is_initialized():
        dist.destroy_process_group()
    path = os.path.join(folder, f"result-{os.environ['RANK']}")
    with open(path + ".partial", "wb") as file:
        file.write(dumps(result))
    os.replace(path + ".partial", path)


if __name__ == "__main__":
    main(sys.argv[1])
