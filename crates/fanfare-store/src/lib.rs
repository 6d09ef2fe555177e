//! What is kept: one interface, an embedded durable engine, a conformance suite.
