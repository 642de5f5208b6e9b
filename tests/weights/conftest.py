import pytest
from sb3_models import MAKERS, Saved, saved


@pytest.fixture(scope="session")
def sb3(tmp_path_factory):
    """Return a function from a kind of policy to one that SB3 trained: each once a session."""
    made: dict[str, Saved] = {}

    def get(kind: str) -> Saved:
        if kind not in made:
            made[kind] = saved(kind, tmp_path_factory.mktemp("sb3"))
        return made[kind]

    assert MAKERS
    return get
