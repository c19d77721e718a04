//! The unmodified services of `bench programs`, and their clients: command lines, and what the
//! clients print.

use std::path::Path;

use anyhow::Context;
use clap::ValueEnum;
use tailwater_sim::report::write_file;
use tailwater_testbed::program::find;

use super::Source;

/// Connections of a client, with one request each at a time.
const CONNECTIONS: &str = "50";
/// Requests of a client that is not measured.
pub const FIRST: u32 = 1_000;
/// Seconds for which `wrk` sends.
const WRK_SECONDS: f64 = 3.0;
const MCLOAD: Source = Source::c("mcload", include_str!("mcload.c"), &["-O2"]);
const PYTHON: &str = "/usr/bin/python3";

/// A service with its client.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Service {
    /// `redis-server`, GET by `redis-benchmark`
    Redis,
    /// The same with 16 requests at a time on each connection
    #[value(name = "redis-16")]
    RedisPipelined,
    /// `memcached -t 1`, get of 32 bytes
    #[value(name = "memcached-1")]
    Memcached1,
    /// `memcached -t 4`
    #[value(name = "memcached-4")]
    Memcached4,
    /// `nginx` with one worker, 2 KiB by `wrk`
    Nginx,
    /// `python3 -m http.server`, by `wrk` with four connections
    Python,
}

/// What a client measured.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Answered {
    pub requests: f64,
    pub requests_s: f64,
    pub p99_us: f64,
}

impl Service {
    /// Returns its name in tables.
    pub fn name(self) -> &'static str {
        match self {
            Self::Redis => "redis, GET",
            Self::RedisPipelined => "redis, GET, -P 16",
            Self::Memcached1 => "memcached -t 1",
            Self::Memcached4 => "memcached -t 4",
            Self::Nginx => "nginx",
            Self::Python => "python3 -m http.server",
        }
    }

    /// Returns the aim: requests a second over those on Linux. `None` where there is none.
    pub fn aim(self) -> Option<f64> {
        match self {
            Self::Redis => Some(3.0),
            Self::Memcached1 => Some(2.5),
            Self::Memcached4 | Self::Nginx => Some(2.0),
            Self::RedisPipelined | Self::Python => None,
        }
    }

    pub fn port(self) -> u16 {
        7401 + self as u16
    }

    /// Returns the first of its programs that is not installed.
    pub fn missing(self) -> Option<&'static str> {
        let programs: &[&str] = match self {
            Self::Redis | Self::RedisPipelined => &["redis-server", "redis-benchmark", "redis-cli"],
            Self::Memcached1 | Self::Memcached4 => &["memcached", "cc"],
            Self::Nginx => &["nginx", "wrk"],
            Self::Python => &["wrk", PYTHON],
        };
        programs.iter().copied().find(|program| find(program).is_none())
    }

    /// Writes its files to `folder`; returns its command line.
    ///
    /// # Errors
    /// If a file cannot be written, or the client cannot be compiled.
    pub fn server(self, folder: &Path) -> anyhow::Result<Vec<String>> {
        let port = self.port().to_string();
        let words = |words: &[&str]| words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>();
        Ok(match self {
            Self::Redis | Self::RedisPipelined => {
                let quiet = ["--protected-mode", "no", "--save", ""];
                words(&[&["redis-server", "--port", &port, "--bind", "0.0.0.0"][..], &quiet].concat())
            }
            Self::Memcached1 | Self::Memcached4 => {
                MCLOAD.compiled(folder)?;
                let threads = if self == Self::Memcached1 { "1" } else { "4" };
                words(&["memcached", "-u", "root", "-t", threads, "-p", &port, "-U", "0", "-l", "0.0.0.0"])
            }
            Self::Nginx => {
                let nginx = find("nginx").context("nginx is not installed")?.display().to_string();
                let config = folder.join("nginx.conf");
                write_file(&folder.join("index.html"), &"x".repeat(2048))?;
                write_file(&config, &nginx_config(folder, &port))?;
                words(&[&nginx, "-c", &config.display().to_string()])
            }
            Self::Python => {
                let pages = folder.join("pages");
                write_file(&pages.join("index.html"), &"x".repeat(2048))?;
                words(&[PYTHON, "-m", "http.server", &port, "--directory", &pages.display().to_string()])
            }
        })
    }

    /// Returns the command line that succeeds once it answers.
    ///
    /// Not `redis-benchmark`, which tries for ever where its first connection is refused.
    pub fn first_question(self, folder: &Path, host: &str) -> Vec<String> {
        let port = self.port().to_string();
        match self {
            Self::Redis | Self::RedisPipelined => {
                ["redis-cli", "-h", host, "-p", &port, "ping"].map(str::to_owned).to_vec()
            }
            _ => self.client(folder, host, FIRST),
        }
    }

    /// Returns the command line of its client, for so many requests where they are counted.
    pub fn client(self, folder: &Path, host: &str, requests: u32) -> Vec<String> {
        let (port, requests) = (self.port().to_string(), requests.to_string());
        let seconds = WRK_SECONDS.to_string();
        let url = format!("http://{host}:{port}/index.html");
        let mcload = folder.join("mcload").display().to_string();
        let redis =
            ["redis-benchmark", "-h", host, "-p", &port, "-t", "get", "-c", CONNECTIONS, "--csv", "-n"];
        let wrk = |connections| ["wrk", "-t", "1", "-d", &seconds, "--latency", "-c", connections, &url];
        let words: Vec<&str> = match self {
            Self::Redis => [&redis[..], &[&requests]].concat(),
            Self::RedisPipelined => [&redis[..], &[&requests, "-P", "16"]].concat(),
            Self::Memcached1 | Self::Memcached4 => vec![&mcload, host, &port, CONNECTIONS, &requests],
            Self::Nginx => wrk(CONNECTIONS).to_vec(),
            Self::Python => wrk("4").to_vec(),
        };
        words.into_iter().map(str::to_owned).collect()
    }

    /// Reads what the client printed after so many requests.
    ///
    /// # Errors
    /// Shows the text that has no figures.
    pub fn read(self, text: &str, requests: u32) -> anyhow::Result<Answered> {
        let figures = match self {
            Self::Redis | Self::RedisPipelined => redis_figures(text),
            Self::Memcached1 | Self::Memcached4 => mcload_figures(text),
            Self::Nginx | Self::Python => wrk_figures(text),
        };
        let (requests_s, p99_us) =
            figures.with_context(|| format!("the client of {} printed no figures: {text}", self.name()))?;
        let counted = !matches!(self, Self::Nginx | Self::Python);
        let requests = if counted { requests.into() } else { requests_s * WRK_SECONDS };
        Ok(Answered { requests, requests_s, p99_us })
    }
}

fn nginx_config(folder: &Path, port: &str) -> String {
    let folder = folder.display();
    let places: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
        .map(|name| format!("{name}_temp_path {folder}/{name}; "))
        .concat();
    format!(
        "daemon off; user root; worker_processes 1; error_log {folder}/log; pid {folder}/pid;\n\
         events {{ worker_connections 1024; }}\n\
         http {{ access_log off; keepalive_requests 100000000; {places}server {{ listen {port}; root {folder}; }} }}\n"
    )
}

/// Reads `"GET","rate","avg","min","p50","p95","p99","max"`, the latencies in milliseconds.
fn redis_figures(text: &str) -> Option<(f64, f64)> {
    let line = text.lines().find(|line| line.starts_with("\"GET\""))?.replace('"', "");
    let fields: Vec<&str> = line.split(',').collect();
    Some((fields.get(1)?.parse().ok()?, fields.get(6)?.parse::<f64>().ok()? * 1000.0))
}

/// Reads the rate, the median and the 99th percentile.
fn mcload_figures(text: &str) -> Option<(f64, f64)> {
    let mut fields = text.split_whitespace().map(|field| field.parse().ok());
    let (rate, _, p99) = (fields.next()??, fields.next()??, fields.next()??);
    Some((rate, p99))
}

fn wrk_figures(text: &str) -> Option<(f64, f64)> {
    let rest = |name: &str| text.lines().find_map(|line| line.trim().strip_prefix(name));
    let p99 = rest("99%")?.trim();
    let units = [("us", 1.0), ("ms", 1e3), ("s", 1e6)];
    let scaled = |(unit, scale): &(&str, f64)| Some(p99.strip_suffix(unit)?.parse::<f64>().ok()? * scale);
    Some((rest("Requests/sec:")?.trim().parse().ok()?, units.iter().find_map(scaled)?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_clients_print_is_read() {
        let redis =
            "\"test\",\"rps\"\n\"GET\",\"263505.12\",\"0.1\",\"0.0\",\"0.1\",\"0.2\",\"0.391\",\"1.0\"\n";
        let read = Service::Redis.read(redis, 1000).unwrap();
        assert_eq!((read.requests, read.requests_s, read.p99_us), (1000.0, 263_505.12, 391.0));
        let wrk = "    50%  1.0ms\n    99%    1.36ms\nRequests/sec:  76882.50\n";
        let read = Service::Nginx.read(wrk, 1000).unwrap();
        assert_eq!((read.requests_s, read.p99_us), (76_882.5, 1360.0));
        assert_eq!(Service::Memcached4.read("331378 120 374\n", 7).unwrap().p99_us, 374.0);
        assert!(Service::Python.read("unable to connect", 1).is_err());
    }
}
