"""A page taken apart, as a browser would."""

import base64
import hashlib
import json
import re
from html.parser import HTMLParser

# Text that is a formula which is none, has a letter that fonts lack, ends a script and begins others.
HOSTILE = (
    "$\\frac{$ 模</script><script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\"><!--"
)


class Page(HTMLParser):
    """Tags with their attributes, text inside of scripts and all other text; rows and sort keys of all tables."""

    def __init__(self, text):
        super().__init__()
        self.text, self.tags, self.scripts, self.words = text, [], [], []
        self.rows, self.keys, self.inside = [], [], ""
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag == "tr":
            self.rows.append([])
            self.keys.append([])
        if tag in ("td", "th"):
            self.rows[-1].append("")
            self.keys[-1].append(dict(attrs).get("data-value"))
        if tag in ("script", "td", "th"):
            self.inside = tag

    def handle_endtag(self, tag):
        self.inside = "" if tag == self.inside else self.inside

    def handle_data(self, data):
        if self.inside == "script":
            self.scripts[-1] += data
            return
        self.words.append(data)
        if self.inside:
            self.rows[-1][-1] += data

    @property
    def data(self):
        return json.loads(self.scripts[0])

    def ids(self):
        return [attributes["id"] for _, attributes in self.tags if "id" in attributes]

    def section(self, name):
        """The section of this id, as a page of its own."""
        (found,) = re.findall(rf'<section id="{name}".*?</section>', self.text, flags=re.DOTALL)
        return Page(found)

    def check_policy(self):
        """It needs no network, and its policy allows its two scripts and nothing else."""
        for tag, attributes in self.tags:
            assert tag not in ("link", "img", "iframe", "base", "object", "embed"), tag
            assert not attributes.keys() & {"src", "action", "background", "style", "onclick"}, (tag, attributes)
            assert attributes.get("href", "#").startswith("#")
        hashes = [base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in self.scripts[1:]]
        assert len(hashes) == 2
        allowed = " ".join(f"'sha256-{each}'" for each in hashes)
        (policy,) = (each["content"] for _, each in self.tags if each.get("http-equiv") == "Content-Security-Policy")
        assert policy == (
            f"default-src 'none'; style-src 'unsafe-inline'; script-src {allowed}; base-uri 'none'; form-action 'none'"
        )
