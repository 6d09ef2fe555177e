//! `fanfare data-plane`.

use std::path::Path;
use std::sync::Arc;

use fanfare_data_plane::{DataPlane, Inheritance, Options, Sockets};
use fanfare_link::Dialer;
use fanfare_types::SUCCESSOR_NAMES;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::args::{DataPlaneArgs, log_directory};
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use crate::signals::{Hangup, Signals};
use crate::{activation, logging, roles};

pub(crate) async fn run(args: &DataPlaneArgs, printer: Printer) -> Result<Exit, Failure> {
    logging::start("info");
    let tls = args.tls.options();
    let with_tls = tls.is_some();
    let mut signals = if with_tls { Signals::but_hangup()? } else { Signals::listen()? };
    let mut hangup = Hangup::listen(with_tls)?;
    let dialer = Dialer::grpc(&args.join.control_plane).map_err(|e| Failure::usage(e.to_string()))?;
    let name = args.join.name.clone().unwrap_or_else(roles::host_name);
    let directory = log_directory(&args.data_dir.data_dir()?, &name);
    let handover = args.run_dir()?.join(format!("data-plane-{}.sock", file_name(&name)));
    let (sockets, name) = sockets(args, &handover, name)?;
    let options = Options {
        asynchronous: Some(args.keep.options(directory, args.listen.ip())),
        name: name.into(),
        listen: args.listen,
        handover: Some(handover),
        address: args.address.as_deref().map(Into::into),
        threads: args.threads as usize,
        metrics: args.metrics_listen,
        tls,
        tracing: args.trace.options(),
        ..Options::default()
    };
    let shutdown = CancellationToken::new();
    let handle = DataPlane::start_on(sockets, options, dialer, shutdown.clone())
        .map_err(|e| roles::data_plane_failure(&e))?;
    let handle = Arc::new(handle);
    let mut reloading = JoinSet::new();
    printer.out(format_args!("http://{}", handle.address()))?;
    if with_tls {
        printer.out(format_args!("https://{}", handle.address()))?;
    }
    loop {
        tokio::select! {
            // It ends by itself where a successor has taken over.
            () = handle.stopped() => {
                let ended = Failure::platform("the data plane has ended");
                return if handle.handed_over() { Ok(Exit::Ok) } else { Err(ended) };
            }
            () = hangup.next(), if reloading.is_empty() => {
                let handle = handle.clone();
                // The files may be on a disk that takes its time.
                reloading.spawn_blocking(move || roles::reload_certificate(&handle));
            }
            Some(ended) = reloading.join_next() => roles::certificate_reloaded(ended),
            () = signals.next() => break,
        }
    }
    shutdown.cancel();
    let drained = async {
        handle.stopped().await;
        Ok(Exit::Ok)
    };
    signals.or_at_once(drained).await
}

/// Where connections are accepted, and under which name the control plane is to know who does.
fn sockets(args: &DataPlaneArgs, handover: &Path, name: String) -> Result<(Sockets, String), Failure> {
    let given = activation::listeners()?;
    let inherited = match args.take_over {
        true => Inheritance::take(handover).map_err(|e| {
            Failure::platform(format!("cannot take over from the data plane that runs here: {e}"))
                .next("try again, or stop it first")
        })?,
        false => None,
    };
    let Some(inheritance) = inherited else {
        return Ok((if given.is_empty() { Sockets::Own } else { Sockets::Given(given) }, name));
    };
    let address = inheritance.address().map_err(|e| Failure::platform(e.to_string()))?;
    if given.is_empty() && args.listen.port() != 0 && address != args.listen {
        return Err(Failure::usage(format!("the data plane that runs here listens on {address}"))
            .next("stop it, or take over with the same --listen"));
    }
    let successor = successor(&name, inheritance.name());
    Ok((Sockets::Inherited(inheritance), successor))
}

/// The next of the names that data planes which replace each other have in turn: for a while two are there, and the
/// control plane takes a second one of the same name for the first one restarted. There are more names than data planes
/// at once: each is gone when its longest request is.
fn successor(name: &str, predecessor: &str) -> String {
    let last = predecessor.strip_prefix(name).and_then(|rest| rest.strip_prefix(':')?.parse().ok());
    match (last.unwrap_or(0_u32) + 1) % SUCCESSOR_NAMES {
        0 => name.to_owned(),
        next => format!("{name}:{next}"),
    }
}

/// The name as a part of a path.
fn file_name(name: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.');
    // A socket's path has room for 107 bytes.
    name.chars().map(|c| if plain(c) { c } else { '_' }).take(48).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn successors_have_names_in_turn() {
        let mut name = "d".to_owned();
        let mut names = Vec::new();
        for _ in 0..9 {
            names.push(name.clone());
            name = successor("d", &name);
        }
        assert_eq!(names, ["d", "d:1", "d:2", "d:3", "d:4", "d:5", "d:6", "d:7", "d"]);
        assert_eq!(successor("d", "other"), "d:1");
    }
}
