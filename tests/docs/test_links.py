"""Links between the pages lead somewhere, on GitHub and on the site."""

import pytest


def broken(page, target: str, anchors_of) -> str | None:
    """Why a link of ``page`` leads nowhere; None if it does, and for links to other sites."""
    if target.startswith(("https://", "http://", "mailto:")):
        return None
    name, _, anchor = target.partition("#")
    path = (page.path.parent / name).resolve() if name else page.path
    if not path.exists():
        return "no such file"
    if anchor and anchor not in anchors_of(path):
        return f"no such heading; there are {', '.join(anchors_of(path))}"
    return None


@pytest.fixture
def anchors_of(pages):
    by_path = {page.path: page for page in pages}
    return lambda path: by_path[path].anchors if path in by_path else []


def test_every_link_leads_somewhere(page, page_name, anchors_of):
    here = page(page_name)
    faults = {target: broken(here, target, anchors_of) for target in here.links}
    assert {target: fault for target, fault in faults.items() if fault} == {}


def test_links_of_the_site_stay_inside_of_it(pages, repository):
    """A link out of docs/ would work on GitHub and be dead on the site."""
    docs = repository / "docs"
    for page in pages:
        if docs in page.path.parents:
            for target in page.links:
                if not target.startswith(("https://", "http://", "#")):
                    assert (page.path.parent / target.partition("#")[0]).resolve().is_relative_to(docs), page.name


def test_dead_links_are_found(page, anchors_of):
    install = page("docs/install.md")
    assert broken(install, "evaluation.md#without-a-model-hub", anchors_of) is None
    assert broken(install, "#one-gpu", anchors_of) is None
    assert broken(install, "evaluations.md", anchors_of)
    assert broken(install, "evaluation.md#without-a-hub", anchors_of)
    assert broken(install, "#two-gpus", anchors_of)
