//! `fanfare secret`: values that functions get and nothing shows.

use std::io::{IsTerminal, Read};
use std::path::Path;
use std::time::{Duration, UNIX_EPOCH};

use fanfare_api::{SecretDocument, SecretListDocument};
use fanfare_types::limits::SECRET_BYTES_MAX;
use zeroize::Zeroizing;

use crate::args::{SecretCommand, SecretListArgs, SecretNameArgs, SecretSetArgs};
use crate::commands::{Context, delete};
use crate::exit::{Exit, Failure};
use crate::hidden;
use crate::printer::{Output, human_duration};

pub(crate) async fn run(context: &Context, command: &SecretCommand) -> Result<Exit, Failure> {
    match command {
        SecretCommand::Set(args) => set(context, args).await,
        SecretCommand::List(args) => list(context, args).await,
        SecretCommand::Describe(args) => describe(context, args).await,
        SecretCommand::Delete(args) => {
            let delete = async |name: &_| context.client.delete_secret(name).await;
            delete::each(context, &args.names, &args.output, delete).await
        }
    }
}

async fn set(context: &Context, args: &SecretSetArgs) -> Result<Exit, Failure> {
    if args.value.is_some() {
        return Err(Failure::usage(
            "a value is no argument: other users of the machine see it there, and the shell keeps it",
        )
        .next(format!(
            "give it on standard input, as in `fanfare secret set {} < FILE`, or name a file with --from-file; and change \
             this value where it is of use",
            args.name
        )));
    }
    let value = match &args.from_file {
        Some(path) => from_file(path)?,
        None if std::io::stdin().is_terminal() => {
            hidden::ask(&format!("Value of {} (not shown): ", args.name))?
        }
        None => from_input()?,
    };
    check(&value)?;
    let secret = context.client.put_secret(&args.name, &value).await?;
    let printer = &context.printer;
    match args.output.output {
        Output::Text | Output::Wide => {
            printer.stage(format_args!("Set {}, version {}", secret.name, secret.version));
            // Names of functions hold no space.
            let (functions, webhooks): (Vec<String>, Vec<String>) =
                secret.used_by.iter().cloned().partition(|user| !user.contains(' '));
            if !functions.is_empty() {
                printer.note(format_args!(
                    "used by {}: its files there are replaced; variables are, in sandboxes that start from now on",
                    functions.join(", ")
                ));
            }
            if !webhooks.is_empty() {
                printer.note(format_args!(
                    "used by {}: whose senders are known by the new value from now on",
                    webhooks.join(", ")
                ));
            }
        }
        Output::Name => printer.out(&secret.name)?,
        Output::Url => {}
        output => printer.document(output, &secret)?,
    }
    Ok(Exit::Ok)
}

async fn list(context: &Context, args: &SecretListArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let secrets = context.client.secrets().await?;
    match args.output.output {
        output @ (Output::Json | Output::Yaml) => {
            printer.document(output, &SecretListDocument { secrets })?;
        }
        Output::Name => secrets.iter().try_for_each(|secret| printer.out(&secret.name))?,
        Output::Url => {}
        Output::Text | Output::Wide if secrets.is_empty() => {
            printer.note("no secrets; set one with `fanfare secret set NAME < FILE`");
        }
        Output::Text | Output::Wide => {
            let row = |secret: &SecretDocument| {
                vec![
                    secret.name.clone(),
                    secret.version.to_string(),
                    age(secret.updated_unix_ms),
                    secret.used_by.join(", "),
                ]
            };
            let rows: Vec<_> = secrets.iter().map(row).collect();
            printer.table(&["NAME", "VERSION", "UPDATED", "USED BY"], &rows)?;
        }
    }
    Ok(Exit::Ok)
}

async fn describe(context: &Context, args: &SecretNameArgs) -> Result<Exit, Failure> {
    let printer = &context.printer;
    let secret = context.client.secret(&args.name).await?;
    match args.output.output {
        Output::Text | Output::Wide => {
            printer.out(format_args!("{}", secret.name))?;
            printer.out(format_args!("  version: {}", secret.version))?;
            printer.out(format_args!("  created: {}", age(secret.created_unix_ms)))?;
            printer.out(format_args!("  updated: {}", age(secret.updated_unix_ms)))?;
            printer.out(format_args!("  used by: {}", secret.used_by.join(", ")))?;
        }
        Output::Name => printer.out(&secret.name)?,
        Output::Url => {}
        output => printer.document(output, &secret)?,
    }
    Ok(Exit::Ok)
}

fn from_file(path: &Path) -> Result<Zeroizing<Vec<u8>>, Failure> {
    let unreadable = |e| {
        Failure::usage(format!("cannot read {}: {e}", path.display()))
            .next("name a file that is there and may be read, or give the value on standard input")
    };
    read(std::fs::File::open(path).map_err(unreadable)?).map_err(unreadable)
}

/// Standard input without one line break at its end, which `echo` and editors add.
fn from_input() -> Result<Zeroizing<Vec<u8>>, Failure> {
    let unreadable = |e| Failure::usage(format!("cannot read the value from standard input: {e}"));
    let mut value = read(std::io::stdin().lock()).map_err(unreadable)?;
    if value.last() == Some(&b'\n') {
        value.pop();
        if value.last() == Some(&b'\r') {
            value.pop();
        }
    }
    Ok(value)
}

/// All there is, or enough to see that it is too much.
fn read(from: impl Read) -> std::io::Result<Zeroizing<Vec<u8>>> {
    // A line break may come on top. It never grows, so nothing of it is left elsewhere in memory.
    let most = SECRET_BYTES_MAX + 2;
    let mut value = Zeroizing::new(Vec::with_capacity(most + 64));
    from.take(most as u64 + 1).read_to_end(&mut value)?;
    Ok(value)
}

fn check(value: &[u8]) -> Result<(), Failure> {
    match value.len() {
        0 => Err(Failure::usage("the value is empty")
            .next("give it on standard input, or name a file with --from-file")),
        len if len > SECRET_BYTES_MAX => {
            Err(Failure::usage(format!("the value has over {SECRET_BYTES_MAX} bytes, which is the limit"))
                .next("pack what is larger with the function, encrypted, and set its key as the secret"))
        }
        _ => Ok(()),
    }
}

fn age(unix_ms: u64) -> String {
    let age = (UNIX_EPOCH + Duration::from_millis(unix_ms)).elapsed().unwrap_or_default();
    format!("{} ago", human_duration(age.as_secs_f64()))
}
