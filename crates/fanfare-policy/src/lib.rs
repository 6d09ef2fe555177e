//! Decisions as pure functions: autoscaling, demand, placement, balancing, eviction, routing.
