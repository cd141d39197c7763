"""One file per judge; the file name is the judge's name, and there is no list to edit."""
