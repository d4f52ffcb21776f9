# MindSpore: `trainmon.watch(net, optimizer)` comes here when it is handed a Cell.
