//! What a node must know of a revision.

use std::time::Duration;

use fanfare_types::limits::{
    COMMAND_ARGS_MAX, ENV_VARS_MAX, FILE_BYTES_MAX, FILES_MAX, SECRETS_PER_FUNCTION_MAX,
};
use fanfare_types::{
    ConfigFile, Contract, Given, Protocol, RevisionSpec, SecretPlace, SecretUse, Sizing, Timeouts,
};

use super::common::{
    checked, digest, name, present, resources, resources_from, revision_id, revision_id_from, secret_name,
    shared,
};
use super::pack::nanos;
use super::{Malformed, proto};

pub(super) fn revision(spec: &RevisionSpec) -> proto::RevisionSpec {
    let env = spec.env.iter().map(|(name, value)| proto::EnvVar { name: name.clone(), value: value.clone() });
    proto::RevisionSpec {
        id: Some(revision_id(spec.id)),
        name: spec.name.as_str().to_owned(),
        runtime: spec.runtime.as_ref().to_owned(),
        contract: Some(proto::Contract { contract: Some(contract(&spec.contract)) }),
        code: spec.code.map(|digest| digest.0.to_vec().into()).unwrap_or_default(),
        env: env.collect(),
        sizing: Some(proto::Sizing {
            request: Some(resources(spec.sizing.request)),
            limit: Some(resources(spec.sizing.limit)),
            pids_limit: spec.sizing.pids_limit,
            tmp_limit_bytes: spec.sizing.tmp_limit_bytes,
            concurrency: spec.sizing.concurrency,
            handler_processes: spec.sizing.handler_processes,
        }),
        start_timeout_ns: nanos(spec.timeouts.start),
        request_timeout_ns: nanos(spec.timeouts.request),
        idle_timeout_ns: spec.timeouts.idle.map_or(0, nanos),
        secrets: spec.given.secrets.iter().map(secret_use).collect(),
        files: spec.given.files.iter().map(config_file).collect(),
    }
}

pub(super) fn revision_from(spec: proto::RevisionSpec) -> Result<RevisionSpec, Malformed> {
    at_most("environment variables", spec.env.len(), ENV_VARS_MAX)?;
    let env = spec
        .env
        .into_iter()
        .map(|var| Ok((checked("a variable's name", var.name)?, checked("a variable's value", var.value)?)));
    let sizing = present("sizing", spec.sizing)?;
    Ok(RevisionSpec {
        id: revision_id_from(spec.id)?,
        name: name(&spec.name)?,
        runtime: shared("a runtime's name", spec.runtime)?,
        contract: contract_from(spec.contract)?,
        code: if spec.code.is_empty() { None } else { Some(digest(&spec.code)?) },
        env: env.collect::<Result<_, Malformed>>()?,
        given: given_from(spec.secrets, spec.files)?,
        sizing: Sizing {
            request: resources_from(sizing.request)?,
            limit: resources_from(sizing.limit)?,
            pids_limit: sizing.pids_limit,
            tmp_limit_bytes: sizing.tmp_limit_bytes,
            concurrency: sizing.concurrency,
            handler_processes: sizing.handler_processes,
        },
        timeouts: Timeouts {
            start: Duration::from_nanos(spec.start_timeout_ns),
            request: Duration::from_nanos(spec.request_timeout_ns),
            idle: Some(Duration::from_nanos(spec.idle_timeout_ns)).filter(|idle| !idle.is_zero()),
        },
    })
}

fn secret_use(used: &SecretUse) -> proto::SecretUse {
    proto::SecretUse {
        secret: used.secret.as_str().to_owned(),
        place: used.place.name().to_owned(),
        env: matches!(used.place, SecretPlace::Env(_)),
    }
}

fn config_file(file: &ConfigFile) -> proto::ConfigFile {
    proto::ConfigFile { path: file.path.clone(), content: file.content.to_vec().into() }
}

fn given_from(secrets: Vec<proto::SecretUse>, files: Vec<proto::ConfigFile>) -> Result<Given, Malformed> {
    at_most("secrets", secrets.len(), SECRETS_PER_FUNCTION_MAX)?;
    at_most("files", files.len(), FILES_MAX)?;
    let secrets = secrets.into_iter().map(|used| {
        let name = checked("a place of a secret", used.place)?;
        let place = if used.env { SecretPlace::Env(name) } else { SecretPlace::File(name) };
        Ok(SecretUse { secret: secret_name(&used.secret)?, place })
    });
    let files = files.into_iter().map(|file| {
        at_most("a file", file.content.len(), FILE_BYTES_MAX)?;
        Ok(ConfigFile { path: checked("a path", file.path)?, content: file.content.as_ref().into() })
    });
    Ok(Given {
        secrets: secrets.collect::<Result<_, Malformed>>()?,
        files: files.collect::<Result<_, Malformed>>()?,
    })
}

pub(super) fn at_most(what: &'static str, len: usize, limit: usize) -> Result<(), Malformed> {
    if len > limit { Err(Malformed::TooMany { what, len, limit }) } else { Ok(()) }
}

fn contract(contract: &Contract) -> proto::contract::Contract {
    use proto::contract::Contract as Wire;
    let handler =
        |file: &String, handler: &String| proto::Handler { file: file.clone(), handler: handler.clone() };
    match contract {
        Contract::Python { file, handler: name } => Wire::Python(handler(file, name)),
        Contract::Node { file, handler: name } => Wire::Node(handler(file, name)),
        Contract::Http { command, inherits_listener, protocol } => Wire::Http(proto::Http {
            command: command.clone(),
            inherits_listener: *inherits_listener,
            h2c: *protocol == Protocol::H2c,
        }),
        Contract::Fake => Wire::Fake(proto::Unit {}),
    }
}

fn contract_from(contract: Option<proto::Contract>) -> Result<Contract, Malformed> {
    use proto::contract::Contract as Wire;
    let contract = contract.and_then(|contract| contract.contract);
    Ok(match present("a contract", contract)? {
        Wire::Python(handler) => Contract::Python {
            file: checked("a handler's file", handler.file)?,
            handler: checked("a handler's name", handler.handler)?,
        },
        Wire::Node(handler) => Contract::Node {
            file: checked("a handler's file", handler.file)?,
            handler: checked("a handler's name", handler.handler)?,
        },
        Wire::Http(http) => {
            at_most("a command", http.command.len(), COMMAND_ARGS_MAX)?;
            let command = http.command.into_iter().map(|argument| checked("an argument", argument));
            Contract::Http {
                command: command.collect::<Result<_, _>>()?,
                inherits_listener: http.inherits_listener,
                protocol: if http.h2c { Protocol::H2c } else { Protocol::Http1 },
            }
        }
        Wire::Fake(proto::Unit {}) => Contract::Fake,
    })
}
