# Measuring where the core does not, values that come later, and the time that hooks take themselves.
