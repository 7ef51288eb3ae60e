"""The frame of every page: one look, and a policy that lets a page show what it holds and load nothing."""

from __future__ import annotations

import base64
from html import escape


def document(title: str, body: str, style: str = "") -> str:
    """A page around `body`, in which every text is escaped already; `style` adds to the rules that all pages share.

    >>> "<title>1 &lt; 2</title>" in document("1 < 2", "<h1>…</h1>")
    True
    """
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta http-equiv="Content-Security-Policy" content="default-src \'none\'; img-src data:; '
        'style-src \'unsafe-inline\'"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{escape(title)}</title><style>{_STYLE}{style}</style></head><body><main>{body}</main></body></html>"
    )


def embedded(picture: bytes, kind: str = "png") -> str:
    """The address of a picture that the page itself holds.

    >>> embedded(b"...", "jpeg")
    'data:image/jpeg;base64,Li4u'
    """
    return f"data:image/{kind};base64,{base64.b64encode(picture).decode('ascii')}"


_STYLE = """
:root{color-scheme:light}*{box-sizing:border-box}
body{margin:0;background:#f5f6f8;color:#1d2530;font:16px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
main{max-width:1040px;margin:0 auto;padding:2rem 1rem}
h1{font-size:1.8rem;line-height:1.2;margin:0 0 .5rem}h2{font-size:1.15rem;margin:0 0 .8rem}
h1,.lead,th,dd,li{overflow-wrap:anywhere}.lead{font-size:1.15rem;margin:0 0 1.5rem;color:#334}
section{background:#fff;border:1px solid #e1e5ea;border-radius:10px;padding:1.2rem;margin:0 0 1.2rem}
.small{font-size:.85rem;color:#566}.wide{overflow-x:auto}
table{border-collapse:collapse;width:100%;font-variant-numeric:tabular-nums}
th,td{padding:.5rem .7rem;text-align:right;border-bottom:1px solid #e8ebef;white-space:nowrap}
thead th{font-size:.85rem;color:#566;font-weight:600}
th:first-child{text-align:left;white-space:normal;min-width:9rem}tbody th{font-weight:500}
pre{background:#f0f2f5;padding:.7rem;border-radius:6px;overflow-x:auto;margin:.3rem 0}
"""
