# Rows of collectives: functions.py sees calls from Python, dispatch_mode.py those from C++.
