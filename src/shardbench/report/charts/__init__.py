"""Charts of tables, drawn by Vega-Lite: Altair writes what they are, vl-convert makes files of them.

Both are an extra of the package; importing any module here raises BadInput where one is missing.
"""

from importlib.util import find_spec

from shardbench.base.errors import BadInput

if not (find_spec("altair") and find_spec("vl_convert")):
    raise BadInput("charts need altair and vl-convert-python: pip install 'shardbench[charts]'")
