//! A lean HTTP/1.1 client: pooled connections, streaming bodies, strict framing.
