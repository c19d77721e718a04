//! Protocols by name and parameters, as the command line gives them.
//!
//! | notation | protocol |
//! |---|---|
//! | `spin` | spin, with work drawn from the plan's service times |
//! | `echo`, `echo:64` | raw echo of 64 bytes |
//! | `memcached`, `memcached:usr`, `memcached:ycsb`, `memcached:etc,keys=1000000,get=0.9` | memcached's text protocol |
//! | `dns:FILE` | A queries for the names in a file |
//! | `rocks`, `rocks:keys=10000,value=64,scan=0.005,put=0,count=5000` | the rocks protocol |
//! | `http`, `http:/,/index.html` | HTTP/1.1 GET |

use std::sync::Arc;

use tailwater_workload::ServiceTime;
use tailwater_workload::keyvalue::{KeyValueError, Workload};

use super::{
    Dns, DnsError, Echo, EchoError, Http, HttpError, Medium, Memcached, Protocol, Rocks, RocksError, Spin,
};

/// Default number of keys of a store.
pub const DEFAULT_KEYS: u64 = 10_000;
/// Default length of an echo.
const DEFAULT_ECHO: usize = 64;
/// Default length of a rocks value.
const DEFAULT_VALUE: usize = 64;

/// Why a protocol's notation was refused.
#[derive(Debug, thiserror::Error)]
pub enum ProtocolError {
    /// The word before the colon names none.
    #[error("`{name}` is not a protocol; use spin, echo, memcached, dns, rocks or http")]
    Name {
        /// What was given.
        name: String,
    },
    /// A parameter that this protocol does not have, or that cannot be read.
    #[error("protocol `{name}`: `{parameter}` is not understood; use {usage}", usage = usage(name))]
    Parameter {
        /// The protocol.
        name: &'static str,
        /// What was given.
        parameter: String,
    },
    /// A list of names that cannot be read.
    #[error("protocol `dns`: cannot read {path}: {reason}")]
    File {
        /// Where it was looked for.
        path: String,
        /// What was wrong.
        reason: std::io::Error,
    },
    /// No list of names.
    #[error("protocol `dns` needs a list of names, one a line: {usage}", usage = usage("dns"))]
    NoFile,
    /// HTTP in datagrams.
    #[error("http needs TCP")]
    NeedsStream,
    /// No such echo.
    #[error(transparent)]
    Echo(#[from] EchoError),
    /// No such store.
    #[error(transparent)]
    KeyValue(#[from] KeyValueError),
    /// No such list.
    #[error(transparent)]
    Dns(#[from] DnsError),
    /// No such store.
    #[error(transparent)]
    Rocks(#[from] RocksError),
    /// Nothing to get.
    #[error(transparent)]
    Http(#[from] HttpError),
}

/// Returns the protocol that `notation` names, over `medium`. `service` is for spin, `host` for
/// http; `read_file` reads a list of names.
///
/// # Errors
/// [`ProtocolError`].
pub fn from_name(
    notation: &str,
    medium: Medium,
    service: &ServiceTime,
    host: &str,
    read_file: impl FnOnce(&str) -> std::io::Result<String>,
) -> Result<Arc<dyn Protocol>, ProtocolError> {
    let (name, rest) = notation.split_once(':').unwrap_or((notation, ""));
    match name {
        "spin" if rest.is_empty() => Ok(Arc::new(Spin::new(service.clone()))),
        "spin" => Err(ProtocolError::Parameter { name: "spin", parameter: rest.to_owned() }),
        "echo" => {
            let bytes = if rest.is_empty() { DEFAULT_ECHO } else { read_number("echo", rest, rest)? };
            Ok(Arc::new(Echo::new(bytes)?))
        }
        "memcached" => memcached(rest, medium),
        "dns" if rest.is_empty() => Err(ProtocolError::NoFile),
        "dns" => {
            let list =
                read_file(rest).map_err(|reason| ProtocolError::File { path: rest.to_owned(), reason })?;
            Ok(Arc::new(Dns::from_list(&list)?))
        }
        "rocks" => rocks(rest),
        "http" if medium == Medium::Datagram => Err(ProtocolError::NeedsStream),
        "http" => {
            let paths: Vec<&str> = if rest.is_empty() { vec!["/"] } else { rest.split(',').collect() };
            Ok(Arc::new(Http::new(host, &paths)?))
        }
        _ => Err(ProtocolError::Name { name: name.to_owned() }),
    }
}

/// Returns the notation of protocol `name`.
fn usage(name: &str) -> &'static str {
    match name {
        "spin" => "spin, and the service time beside it",
        "echo" => "echo or echo:64 (bytes)",
        "memcached" => {
            "memcached:usr, memcached:etc or memcached:ycsb, and keys=10000 or get=0.998 after commas"
        }
        "dns" => "dns:FILE",
        "rocks" => "rocks:keys=10000,value=64,scan=0.01,put=0,count=5000, or some of these",
        _ => "http:/,/index.html",
    }
}

fn read_number<T: std::str::FromStr>(
    name: &'static str,
    value: &str,
    parameter: &str,
) -> Result<T, ProtocolError> {
    value.parse().map_err(|_| ProtocolError::Parameter { name, parameter: parameter.to_owned() })
}

fn memcached(parameters: &str, medium: Medium) -> Result<Arc<dyn Protocol>, ProtocolError> {
    const NAME: &str = "memcached";
    let (mut workload, mut keys, mut share) = (Workload::Usr, DEFAULT_KEYS, None);
    for parameter in parameters.split(',').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            None => workload = parameter.parse()?,
            Some(("keys", value)) => keys = read_number(NAME, value, parameter)?,
            Some(("get", value)) => share = Some(read_number(NAME, value, parameter)?),
            Some(_) => return Err(ProtocolError::Parameter { name: NAME, parameter: parameter.to_owned() }),
        }
    }
    let protocol = Memcached::new(workload, keys, medium)?;
    Ok(Arc::new(match share {
        Some(share) => protocol.with_get_share(share)?,
        None => protocol,
    }))
}

fn rocks(parameters: &str) -> Result<Arc<dyn Protocol>, ProtocolError> {
    const NAME: &str = "rocks";
    let (mut keys, mut value_len, mut scan, mut put, mut count) =
        (DEFAULT_KEYS, DEFAULT_VALUE, 0.0, 0.0, None);
    for parameter in parameters.split(',').filter(|parameter| !parameter.is_empty()) {
        match parameter.split_once('=') {
            Some(("keys", value)) => keys = read_number(NAME, value, parameter)?,
            Some(("value", value)) => value_len = read_number(NAME, value, parameter)?,
            Some(("scan", value)) => scan = read_number(NAME, value, parameter)?,
            Some(("put", value)) => put = read_number(NAME, value, parameter)?,
            Some(("count", value)) => count = Some(read_number(NAME, value, parameter)?),
            _ => return Err(ProtocolError::Parameter { name: NAME, parameter: parameter.to_owned() }),
        }
    }
    let protocol = Rocks::new(keys, value_len)?.with_shares(scan, put)?;
    Ok(Arc::new(match count {
        Some(count) => protocol.with_scan_count(count),
        None => protocol,
    }))
}
