//! Streams between the roles: messages, batches, sequence numbers, epochs; over gRPC or in one process.
