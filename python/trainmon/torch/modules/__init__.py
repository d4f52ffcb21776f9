# Rows of modules: what goes in and comes out of them, in compiled code, too, and who called them.
