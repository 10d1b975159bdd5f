"""The built distributions, installed where there is no source tree: everything is in them, and works. H22."""

from __future__ import annotations

import shutil
import subprocess
import sys
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

from tests.migration.alembic_command import ROOT
from tests.migration.file_state import schema, table_names
from tests.migration.seed_files import NEWEST, STORES, make_newest

pytestmark = pytest.mark.timeout(400)

UNWANTED = shutil.ignore_patterns(".*", "*.egg-info", "build", "dist", "data", "__pycache__", "qstore-demo")


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from the sdist, of a copy of the source tree."""
    directory = tmp_path_factory.mktemp("built")
    shutil.copytree(ROOT, directory / "source", ignore=UNWANTED)
    run(sys.executable, "-m", "build", "--outdir", directory / "dist", directory / "source", cwd=directory)
    return directory / "dist"


@pytest.fixture(scope="module")
def installed(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The python of an environment that has the wheel and its dependencies, and nothing else."""
    directory = tmp_path_factory.mktemp("installed")
    venv.create(directory, with_pip=True)
    python = directory / ("Scripts" if sys.platform == "win32" else "bin") / "python"
    [wheel] = built.glob("*.whl")
    run(python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", wheel, cwd=directory)
    return python


def in_wheel(built: Path) -> set[str]:
    [wheel] = built.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        return set(archive.namelist())


def in_sdist(built: Path) -> set[str]:
    [sdist] = built.glob("*.tar.gz")
    with tarfile.open(sdist) as archive:
        return {name.partition("/")[2] for name in archive.getnames()}


def modules(folder: str) -> set[str]:
    return {str(path.relative_to(ROOT)) for path in (ROOT / folder).rglob("*.py")}


def test_the_wheel_has_every_module_revision_and_data_file(built: Path) -> None:
    shipped = in_wheel(built)
    expected = modules("qstore") | {f"qstore/{name}" for name in modules("migrations")}
    assert {name for name in shipped if name.endswith(".py")} == expected
    assert {"qstore/py.typed", "qstore/migrations/script.py.mako"} <= shipped
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in shipped)


def test_the_wheel_has_nothing_at_the_top_but_qstore(built: Path) -> None:
    tops = {name.partition("/")[0] for name in in_wheel(built)}
    assert sorted(top for top in tops if not top.endswith(".dist-info")) == ["qstore"]


def test_the_sdist_has_what_the_wheel_is_made_of(built: Path) -> None:
    wanted = {"pyproject.toml", "LICENSE", "README.md", "qstore/py.typed", "migrations/script.py.mako"}
    assert (wanted | modules("qstore") | modules("migrations")) <= in_sdist(built)


def test_an_installed_qstore_has_as_many_revisions_as_the_source_tree(installed: Path, tmp_path: Path) -> None:
    script = "from qstore import revisions; print(*revisions.script_directory().get_heads())"
    said = run(installed, "-c", script, cwd=tmp_path)
    assert sorted(said.split()) == sorted(NEWEST.values())
    script = "from qstore import revisions as r; print(len(list(r.script_directory().walk_revisions())), r.location())"
    count, location = run(installed, "-c", script, cwd=tmp_path).split()
    assert int(count) == len(list((ROOT / "migrations" / "versions").glob("*.py")))
    assert not Path(location).is_relative_to(ROOT)


@pytest.mark.parametrize("store", STORES)
def test_an_installed_qstore_makes_and_upgrades_stores_from_any_working_directory(
    installed: Path, tmp_path: Path, store: str
) -> None:
    script = f"""
import qstore
from qstore import migrate
engine = qstore.open_engine("upgraded/{store}.sqlite")
migrate.upgrade(engine)
assert migrate.check(engine) == ()
print(*migrate.current(engine))
engine.dispose()
repositories = dict(
    transport=qstore.TransportRepository, localkv=qstore.LocalKvRepository, localqueue=qstore.LocalQueueRepository
)
repositories["{store}"].open("sqlite:///opened.sqlite").close()
repositories["{store}"].open("sqlite:///upgraded/{store}.sqlite", create=False).close()
"""
    (tmp_path / "upgraded").mkdir()
    assert run(installed, "-W", "error", "-c", script, cwd=tmp_path).split() == [NEWEST[store]]
    expected = schema(make_newest(tmp_path / "whole", store))
    assert schema(tmp_path / "upgraded" / f"{store}.sqlite") == expected
    assert schema(tmp_path / "opened.sqlite") == expected


def test_the_alembic_command_of_an_installed_qstore_finds_the_revisions_by_the_package(
    installed: Path, tmp_path: Path
) -> None:
    location = run(installed, "-c", "from qstore import revisions; print(revisions.location())", cwd=tmp_path).strip()
    (tmp_path / "alembic.ini").write_text(f"[alembic]\nscript_location = {location}\n")
    run(installed, "-m", "alembic", "-x", "data_dir=data", "upgrade", "heads", cwd=tmp_path)
    assert "meta" in table_names(tmp_path / "data" / "localkv.sqlite")


def test_an_installed_qstore_needs_no_extra_and_brings_no_test_tool(installed: Path, tmp_path: Path) -> None:
    listed = run(installed, "-m", "pip", "list", "--disable-pip-version-check", cwd=tmp_path).lower()
    for name in ("pytest", "hypothesis", "pandas", "typer", "aiosqlite", "psycopg"):
        assert name not in listed
    run(installed, "-m", "pip", "check", "--disable-pip-version-check", cwd=tmp_path)
