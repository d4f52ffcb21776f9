# What the adapters of all frameworks share; nothing here knows a framework.
