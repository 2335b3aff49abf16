import pytest
import torch


@pytest.fixture(autouse=True)
def one_thread():
    """The tensors of tests are small: a second core is mostly waited for, for seconds if it is busy."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)
