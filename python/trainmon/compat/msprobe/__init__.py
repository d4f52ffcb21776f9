# msprobe: names, arguments and files of its monitor.
