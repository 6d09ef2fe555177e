//! `fanfare control-plane`.

use fanfare_control_plane::{ControlPlane, Options};

use crate::args::ControlPlaneArgs;
use crate::exit::{Exit, Failure};
use crate::printer::Printer;
use crate::roles::{control_plane_failure, open_store};
use crate::signals::Signals;
use crate::{dirigent, logging, ports};

pub(crate) async fn run(args: &ControlPlaneArgs, printer: Printer) -> Result<Exit, Failure> {
    logging::start("info");
    ports::apart(&[("--api-listen", args.api_listen), ("--grpc-listen", args.grpc_listen)])?;
    let mut signals = Signals::listen()?;
    let data_dir = args.data_dir.data_dir()?;
    let store = open_store(&data_dir).await?;
    let options = Options {
        name: args.name.clone(),
        api_address: args.api_listen,
        link_address: Some(args.grpc_listen),
        placement: args.policy.placement,
        secrets_key: args.secrets_key.path(&data_dir),
        dirigent: dirigent::images(&args.dirigent, false).await?,
        ..Options::new(data_dir)
    };
    let shutdown = tokio_util::sync::CancellationToken::new();
    let handle =
        ControlPlane::start(options, store, shutdown.clone()).await.map_err(|e| control_plane_failure(&e))?;
    printer.out(format_args!("http://{}", handle.api_address()))?;
    let mut ended = Box::pin(handle.wait());
    let result = tokio::select! {
        result = &mut ended => result.map_err(|e| control_plane_failure(&e)),
        () = signals.next() => {
            shutdown.cancel();
            signals.or_at_once(async { ended.await.map_err(|e| control_plane_failure(&e)) }).await
        }
    };
    result.map(|()| Exit::Ok)
}
