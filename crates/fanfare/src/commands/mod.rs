//! One file per verb.

mod asynchronous;
mod completions;
mod context;
mod control_plane;
mod data_plane;
mod delete;
mod demo;
mod deploy;
mod describe;
mod dev;
mod doctor;
mod explain;
mod invoke;
mod list;
mod load;
mod logs;
mod man;
mod node;
mod revisions;
mod rollback;
mod sample_server;
mod schedule;
mod schema;
mod secret;
mod sim;
mod status;
mod top;
mod traffic;
mod up;
mod update;
mod webhook;

use std::process::ExitCode;

use fanfare_api::ClusterStatusDocument;
use tokio::runtime::Builder;

use crate::args::{Args, Command};
use crate::client::Client;
use crate::contexts;
use crate::descriptors;
use crate::exit::{Exit, Failure};
use crate::http::Base;
use crate::printer::Printer;

/// What client verbs work with.
#[derive(Clone, Debug)]
pub(crate) struct Context {
    pub(crate) client: Client,
    pub(crate) printer: Printer,
}

/// Runs the command; says why it failed.
pub(crate) fn run(args: Args) -> ExitCode {
    let printer = Printer::new(args.global.quiet, args.global.debug, args.global.output);
    match dispatch(args, printer) {
        Ok(exit) => exit.into(),
        Err(failure) => {
            printer.failure(&failure);
            failure.exit.into()
        }
    }
}

fn dispatch(args: Args, printer: Printer) -> Result<Exit, Failure> {
    match args.command {
        Command::Completions(args) => completions::run(&args, printer),
        Command::Man(args) => man::run(&args, printer),
        Command::Schema(_) => schema::run(printer),
        Command::Sim(args) => sim::run(&args, &printer),
        Command::Context(args) => {
            block_on(&mut Builder::new_current_thread(), context::run(&args.command, printer))
        }
        Command::Up(args) => role(|| up::run(&args, printer)),
        Command::Demo(args) => role(|| demo::run(&args, printer)),
        Command::ControlPlane(args) => role(|| control_plane::run(&args, printer)),
        Command::DataPlane(args) => role(|| data_plane::run(&args, printer)),
        Command::Node(args) => role(|| node::run(&args, printer)),
        Command::Doctor(args) => role(|| doctor::run(&args, printer)),
        Command::SampleServer => block_on(&mut Builder::new_current_thread(), sample_server::run()),
        command => {
            let context = Context { client: Client::new(&contexts::api(&args.global)?, printer)?, printer };
            block_on(&mut Builder::new_current_thread(), client(command, context))
        }
    }
}

/// Runs a client verb.
async fn client(command: Command, context: Context) -> Result<Exit, Failure> {
    match command {
        Command::Deploy(args) => deploy::run(&context, &args).await,
        Command::Dev(args) => dev::run(&context, &args).await,
        Command::Invoke(args) => invoke::run(&context, &args).await,
        Command::Async(args) => asynchronous::run(&context, &args).await,
        Command::Schedule(args) => schedule::run(&context, &args).await,
        Command::Webhook(args) => webhook::run(&context, &args).await,
        Command::List(args) => list::run(&context, &args).await,
        Command::Describe(args) => describe::run(&context, &args).await,
        Command::Update(args) => update::run(&context, &args).await,
        Command::Traffic(args) => traffic::run(&context, &args).await,
        Command::Tag(args) => traffic::tag(&context, &args).await,
        Command::Revisions(args) => revisions::run(&context, &args).await,
        Command::Rollback(args) => rollback::run(&context, &args).await,
        Command::Delete(args) => delete::run(&context, &args).await,
        Command::Secret(args) => secret::run(&context, &args.command).await,
        Command::Logs(args) => logs::run(&context, &args).await,
        Command::Explain(args) => explain::run(&context, &args).await,
        Command::Top(args) => top::run(&context, &args).await,
        Command::Load(args) => load::run(&context, &args).await,
        Command::Status(args) => status::run(&context, &args).await,
        // Handled before there is a client.
        Command::Up(_)
        | Command::Demo(_)
        | Command::Doctor(_)
        | Command::ControlPlane(_)
        | Command::DataPlane(_)
        | Command::Node(_)
        | Command::SampleServer
        | Command::Completions(_)
        | Command::Context(_)
        | Command::Man(_)
        | Command::Schema(_)
        | Command::Sim(_) => Err(Failure::platform("this verb is not a client's")),
    }
}

/// Runs a verb that serves, with all CPUs and all the descriptors it may have.
fn role<F: Future<Output = Result<Exit, Failure>>>(run: impl FnOnce() -> F) -> Result<Exit, Failure> {
    descriptors::raise();
    block_on(&mut Builder::new_multi_thread(), run())
}

fn block_on(
    builder: &mut Builder,
    run: impl Future<Output = Result<Exit, Failure>>,
) -> Result<Exit, Failure> {
    let runtime = builder
        .enable_all()
        .build()
        .map_err(|e| Failure::platform(format!("cannot start the event loop: {e}")))?;
    let exit = runtime.block_on(run);
    // A read of standard input may still be blocked in a thread; it must not keep the process.
    runtime.shutdown_background();
    exit
}

/// Where functions are called: where the user says, or else where the control API says.
async fn data_plane(context: &Context, given: Option<&str>) -> Result<Base, Failure> {
    match given {
        Some(given) => Base::parse(given, "--data-plane"),
        None => Base::parse(&data_plane_url(&context.client.status().await?)?, "the data plane's address"),
    }
}

/// Where functions are called: the first data plane whose stream is up.
fn data_plane_url(status: &ClusterStatusDocument) -> Result<String, Failure> {
    let up = status.data_planes.iter().find(|data_plane| data_plane.connected);
    let up = up.ok_or_else(|| {
        Failure::platform("no data plane is connected to the control plane")
            .next("start one with `fanfare data-plane`, or say where it is with --data-plane URL")
    })?;
    Ok(format!("http://{}", reachable(&up.address)))
}

/// An address to connect to, for one that is listened on: "any" means this machine.
fn reachable(address: &str) -> String {
    match address.parse::<std::net::SocketAddr>() {
        Ok(mut socket) if socket.ip().is_unspecified() => {
            socket.set_ip(match socket.ip() {
                std::net::IpAddr::V4(_) => std::net::Ipv4Addr::LOCALHOST.into(),
                std::net::IpAddr::V6(_) => std::net::Ipv6Addr::LOCALHOST.into(),
            });
            socket.to_string()
        }
        _ => address.to_owned(),
    }
}

/// The URL of a function on a data plane.
fn function_url(data_plane: &str, name: impl std::fmt::Display) -> String {
    format!("{data_plane}/function/{name}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_address_is_reached_on_this_machine() {
        let cases = [
            ("0.0.0.0:8080", "127.0.0.1:8080"),
            ("[::]:8080", "[::1]:8080"),
            ("10.0.0.1:8080", "10.0.0.1:8080"),
            ("node-1:8080", "node-1:8080"),
        ];
        for (listened, reached) in cases {
            assert_eq!(reachable(listened), reached);
        }
    }
}
