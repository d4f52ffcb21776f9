# What is given by users, checked.
