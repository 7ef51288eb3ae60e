"""XML that strangers made: limits that real annotations stay below, and errors that name the file and the line."""

import time

import pytest

from pluralis.data import read
from pluralis.data.formats.voc_xml import Annotation
from pluralis.data.safe_xml import MAX_TOKEN, parse
from pluralis.errors import DataError

OBJECT = (
    "<object><name>cell</name><pose>Unspecified</pose><truncated>0</truncated><difficult>0</difficult>"
    "<bndbox><xmin>1</xmin><ymin>2</ymin><xmax>3</xmax><ymax>4</ymax></bndbox></object>\n"
)


class Texts:
    """Keeps the attributes of each element, and all text."""

    def __init__(self):
        self.found = {}

    def start(self, tag, attributes):
        self.found[tag] = "".join(attributes.values())

    def data(self, text):
        self.found["text"] = self.found.get("text", "") + text

    def end(self, tag):
        self.found["ended"] = self.found.get("ended", 0) + 1

    def close(self):
        self.found["closed"] = True


def refused(tmp_path, content, **options):
    (tmp_path / "x.xml").write_bytes(content)
    with pytest.raises(DataError) as caught:
        parse(tmp_path / "x.xml", Texts(), options.get("max_bytes", 1 << 30), "get it again")
    message = str(caught.value)
    assert message.startswith(str(tmp_path / "x.xml"))
    assert message.endswith("; get it again")
    return message


@pytest.mark.parametrize("opened", ["<!--", "<?x ", '<b c="', "<b ", "<", "&", "</"])
@pytest.mark.parametrize("encoding", ["utf-8", "utf-16"])
def test_what_does_not_end_is_refused_with_its_line(tmp_path, opened, encoding):
    content = ("<a>\n\n" + opened + "x" * (3 * MAX_TOKEN)).encode(encoding)
    start = time.process_time()
    assert "x.xml, line 3: a tag or comment over the limit of 1,048,576 bytes" in refused(tmp_path, content)
    assert time.process_time() - start < 0.1


def test_a_long_text_is_no_long_tag(tmp_path):
    (tmp_path / "x.xml").write_text(f"<a><b>{'x' * (3 * MAX_TOKEN)}</b><c d='{'x' * (MAX_TOKEN // 2)}'/></a>")
    parse(tmp_path / "x.xml", texts := Texts(), 1 << 30, "get it again")
    assert (len(texts.found["text"]), len(texts.found["c"])) == (3 * MAX_TOKEN, MAX_TOKEN // 2)


def test_other_limits(tmp_path):
    assert "over the limit of 10 bytes" in refused(tmp_path, b"<a></a>     ", max_bytes=10)
    assert "nested deeper than 32 levels" in refused(tmp_path, b"<a>" * 33)
    names = b"".join(b"<a%d b%d=''/>" % (n, n) for n in range(600))
    assert "over the limit of 1,000 names of tags" in refused(tmp_path, b"<a>" + names + b"</a>")
    assert "is not plain XML: DTDForbidden" in refused(tmp_path, b"<!DOCTYPE a><a/>")
    assert "is not plain XML: no element found" in refused(tmp_path, b"")
    (tmp_path / "x.xml").write_bytes(b"<a>" * 32 + b"</a>" * 32)
    parse(tmp_path / "x.xml", texts := Texts(), 1 << 30, "")
    assert texts.found == {"a": "", "ended": 32, "closed": True}


def test_a_picture_of_many_objects_is_an_annotation(tmp_path):
    """1,600 cells under a microscope are 288 kB."""
    for name in ("JPEGImages/a.jpg", "Annotations/a.xml"):
        (tmp_path / name).parent.mkdir()
        (tmp_path / name).touch()
    (tmp_path / "Annotations" / "a.xml").write_text(f"<annotation>\n{OBJECT * 1_600}</annotation>")
    assert (tmp_path / "Annotations" / "a.xml").stat().st_size > 256 << 10
    data = read("voc", tmp_path, source="xml", split="all", unlisted="unknown")
    assert data.labels.dense().tolist() == [[1]]


def test_text_beside_a_name_and_a_second_name_do_not_count(tmp_path):
    text = "<annotation>a<object>b<name> cell </name>c<name>d</name><part><name>e</name></part></object></annotation>"
    (tmp_path / "x.xml").write_text(text)
    assert [thing.name for thing in Annotation(tmp_path / "x.xml").things()] == ["cell"]
