//! Compiles the wire's description; no `protoc` is needed.

use std::error::Error;

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto/internal.proto");
    let descriptors = protox::compile(["proto/internal.proto"], ["proto"])?;
    tonic_prost_build::configure()
        .bytes(".")
        // Written by hand: it must not show the value.
        .skip_debug(["Secret"])
        .compile_fds(descriptors)?;
    Ok(())
}
