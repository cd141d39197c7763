"""Tables, figures, the HTML report and exports, made from stored runs.

Reads joined run documents and writes files for people and other tools; it changes nothing in the
store.
"""

from __future__ import annotations

from adversariallm.reporting.html import write_report
from adversariallm.reporting.load import load_results, read_documents
from adversariallm.reporting.summary import summarize
from adversariallm.reporting.tables import Table, write_csv

__all__ = ["Table", "load_results", "read_documents", "summarize", "write_csv", "write_report"]
