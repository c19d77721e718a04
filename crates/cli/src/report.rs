//! `tailwater report`: one file with what a bug report needs.
//!
//! Owns the list of sections, and the file, which is text for people: whoever sends it can read
//! before what it says. A section that cannot be had says why, and the others are written. Nothing
//! of the machine is changed.

use std::fmt::Write as _;
use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom, Write, stdout};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Context, bail};
use clap::Args;
use tailwater_iokernel::Config;
use tailwater_testbed::machine::{self, Machine};
use tailwater_testbed::socket::IokernelArg;

use crate::iokernel::read_configuration;
use crate::{doctor, nat, query};

/// Most bytes of a file's end, and lines of a log.
const MOST_BYTES: u64 = 256 << 10;
const LINES: &str = "500";

/// The configuration of the packages' unit.
const CONFIG: &str = "/etc/tailwater.toml";

/// What stands before the first section.
const PREFACE: &str = "Read this file before you send it. It has what its sections name: among that, names of users, \
programs and files, IP and MAC addresses, the command lines of the unit's processes, and the log of the IOKernel. It \
has no packets and no memory of programs.\n";

/// Write one file with what a bug report needs: version, machine, configuration, counters, log
#[derive(Debug, Clone, Args)]
#[command(after_help = "Examples:
  sudo tailwater report                             the IOKernel of the unit `tailwater`
  tailwater report --out bug.txt --log run.log   one whose log went to a file
  tailwater report --unit my-tailwater --config /etc/my.toml

The file is text; read it before you send it. It has:
  version, machine    model, cores, memory, kernel, load, what `tailwater doctor` finds
  configuration       the file as it is, and what is wrong in it
  counters            what `tailwater stats --json` prints: names, addresses and numbers of programs
  service, log        state of the unit with the command lines of its processes, and the last 500
                      lines of its journal; lines of panics are there
  environment         variables whose names begin with TAILWATER_

It has no packets and no memory of programs. Only its owner may read it; a file that is there is not overwritten.")]
pub struct ReportArgs {
    /// File to write [default: tailwater-report-TIME.txt in this folder]
    #[arg(long, value_name = "FILE")]
    out: Option<PathBuf>,
    #[command(flatten)]
    iokernel: IokernelArg,
    /// Configuration of the IOKernel [default: /etc/tailwater.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    /// Unit of systemd that runs the IOKernel
    #[arg(long, default_value = "tailwater", value_parser = parse_unit)]
    unit: String,
    /// File with the log of an IOKernel that is no unit
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
}

/// Writes the file and prints its name.
///
/// # Errors
/// If the file is there already, or cannot be written, or one that `args` name cannot be read: it
/// may be what the report is for.
pub fn run(args: &ReportArgs) -> anyhow::Result<()> {
    for named in [&args.config, &args.log].into_iter().flatten() {
        File::open(named).with_context(|| format!("cannot read {}", named.display()))?;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    let path = args.out.clone().unwrap_or_else(|| format!("tailwater-report-{now}.txt").into());
    let mut file = create(&path)?;
    file.write_all(text(args).as_bytes()).with_context(|| format!("cannot write {}", path.display()))?;
    writeln!(stdout(), "{}", path.display())?;
    Ok(())
}

/// Makes a file of the caller's own, which is not there.
fn create(path: &Path) -> anyhow::Result<File> {
    match OpenOptions::new().write(true).create_new(true).mode(0o600).open(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            bail!("{} exists: choose another --out, or remove it", path.display())
        }
        made => made.with_context(|| format!("cannot write {}", path.display())),
    }
}

fn text(args: &ReportArgs) -> String {
    let file = args.config.as_deref().unwrap_or(Path::new(CONFIG));
    let config = read_configuration(file);
    let checked = match &config {
        Ok(config) => findings(config),
        Err(error) => format!("{error:#}\n"),
    };
    let config = config.unwrap_or_default();
    let unit = args.unit.as_str();
    let sections = [
        ("version", Ok(format!("tailwater {}\n", machine::version()))),
        ("machine", Ok(format!("{}\n{}", Machine::describe(), states()))),
        ("tailwater doctor", Ok(doctor::examine(&args.iokernel, &config))),
        ("configuration", end_of(file)),
        ("check of the configuration", Ok(checked)),
        ("counters", counters(&args.iokernel)),
        ("service", output("systemctl", &["status", "--no-pager", "--full", "--lines=0", "--", unit])),
        (
            "journal",
            output("journalctl", &["--no-pager", "--output=short-iso", "--lines", LINES, "--unit", unit]),
        ),
        ("log", args.log.as_deref().map_or_else(|| Ok("no --log\n".to_owned()), end_of)),
        ("environment", Ok(variables())),
    ];
    let mut text = PREFACE.to_owned();
    for (name, content) in sections {
        let content = content.unwrap_or_else(|error| format!("not there: {error:#}\n"));
        // Writing to a String does not fail.
        let _ = write!(text, "\n==== {name}\n{content}");
    }
    shown(&text)
}

/// Returns text that a terminal only shows: processes choose their command lines, and those may
/// have control characters.
fn shown(text: &str) -> String {
    text.replace(|c: char| c.is_control() && c != '\n' && c != '\t', "?")
}

/// Returns what is found of the configuration by itself.
fn findings(config: &Config) -> String {
    let findings = tailwater_iokernel::check_text(config).into_iter().chain(nat::examine_text(config));
    findings.map(|found| format!("{:?} {}: {}\n", found.verdict, found.subject, found.found)).collect()
}

/// Words of the kernel's command line that say how it uses cores; others may be secret.
const OF_CORES: [&str; 8] =
    ["isolcpus", "nohz", "nohz_full", "rcu_nocbs", "mitigations", "idle", "processor.max_cstate", "preempt"];

/// Returns how busy the machine is, and what of its settings matters.
fn states() -> String {
    let files = [
        "/proc/version",
        "/proc/uptime",
        "/proc/loadavg",
        "/proc/pressure/cpu",
        "/proc/self/cgroup",
        "/sys/devices/system/clocksource/clocksource0/current_clocksource",
    ];
    let state = |file: &str| match std::fs::read_to_string(file) {
        Ok(text) => format!("{file}: {}\n", text.trim_end().replace('\n', "\n    ")),
        Err(error) => format!("{file}: {error}\n"),
    };
    let line = std::fs::read_to_string("/proc/cmdline").unwrap_or_default();
    let known = |word: &&str| OF_CORES.contains(&word.split('=').next().unwrap_or_default());
    let words: Vec<&str> = line.split_whitespace().filter(known).collect();
    files.into_iter().map(state).collect::<String>() + &format!("/proc/cmdline: {} ...\n", words.join(" "))
}

fn counters(socket: &str) -> anyhow::Result<String> {
    let statistics = query::statistics_and_jobs(socket, query::PATIENCE)?;
    Ok(serde_json::to_string_pretty(&statistics)? + "\n")
}

/// Returns what a command prints, errors too: they say why there is nothing else.
fn output(program: &str, arguments: &[&str]) -> anyhow::Result<String> {
    let output = Command::new(program).args(arguments).output();
    let output = output.with_context(|| format!("cannot run {program}"))?;
    let mut text = String::from_utf8_lossy(&output.stdout).into_owned();
    text += &String::from_utf8_lossy(&output.stderr);
    Ok(text)
}

/// Returns a file, or the last part of a long one.
fn end_of(path: &Path) -> anyhow::Result<String> {
    let read = || {
        let mut file = File::open(path)?;
        let skipped = file.metadata()?.len().saturating_sub(MOST_BYTES);
        file.seek(SeekFrom::Start(skipped))?;
        let mut bytes = Vec::new();
        file.take(MOST_BYTES).read_to_end(&mut bytes)?;
        Ok::<_, std::io::Error>((skipped, bytes))
    };
    let (skipped, bytes) = read().with_context(|| format!("cannot read {}", path.display()))?;
    let text = String::from_utf8_lossy(&bytes);
    let line_end = if text.ends_with('\n') { "" } else { "\n" };
    Ok(format!("{}, from byte {skipped}:\n{text}{line_end}", path.display()))
}

fn variables() -> String {
    let ours = std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"TAILWATER_"));
    ours.map(|(name, value)| format!("{}={}\n", name.display(), value.display())).collect()
}

/// Checks that the name is no option of systemctl's or journalctl's, and no pattern.
fn parse_unit(name: &str) -> Result<String, String> {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "@._:-\\".contains(c);
    match !name.is_empty() && !name.starts_with('-') && name.chars().all(is_plain) {
        true => Ok(name.to_owned()),
        false => Err("the name of one unit is needed, such as tailwater".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn args(folder: &Path) -> ReportArgs {
        let [config, log] = ["tailwater.toml", "log"].map(|name| folder.join(name));
        std::fs::write(&config, "mtu = 1400\n[[grant]]\nusers = \"alice\"\n").unwrap();
        std::fs::write(&log, "a\x1b[2J\u{9b}b\tthe last line").unwrap();
        ReportArgs {
            out: Some(folder.join("report.txt")),
            iokernel: IokernelArg { iokernel: tailwater_testkit::socket_name("report") },
            config: Some(config),
            unit: "tailwater-report-test".to_owned(),
            log: Some(log),
        }
    }

    #[test]
    fn a_report_has_every_section_though_nothing_runs_and_only_its_owner_may_read_it() {
        let folder = tempfile::tempdir().unwrap();
        let args = args(folder.path());
        run(&args).unwrap();
        let path = args.out.as_ref().unwrap();
        let text = std::fs::read_to_string(path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        for part in [
            "==== version\ntailwater 0.",
            "==== machine\n",
            "==== tailwater doctor\n",
            "mtu = 1400",
            "Ok configuration: ",
            "==== counters\nnot there: ",
            "==== service\n",
            "==== journal\n",
            "a?[2J?b\tthe last line\n",
        ] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }

    #[test]
    fn a_file_that_was_named_and_is_not_there_is_an_error_and_nothing_is_written() {
        let folder = tempfile::tempdir().unwrap();
        let args = args(folder.path());
        let absent = Some(folder.path().join("absent"));
        for wrong in [
            ReportArgs { config: absent.clone(), ..args.clone() },
            ReportArgs { log: absent, ..args.clone() },
        ] {
            let error = format!("{:#}", run(&wrong).unwrap_err());
            assert!(error.contains("cannot read") && error.contains("absent"), "{error}");
        }
        assert!(!args.out.unwrap().exists());
    }

    #[test]
    fn a_file_that_is_there_is_not_overwritten() {
        let folder = tempfile::tempdir().unwrap();
        let args = args(folder.path());
        let path = args.out.clone().unwrap();
        std::fs::write(&path, "mine").unwrap();
        let error = run(&args).unwrap_err().to_string();
        assert!(error.contains("exists") && error.contains("--out"), "{error}");
        // Nor through a link that leads nowhere.
        let link = folder.path().join("link");
        std::os::unix::fs::symlink(folder.path().join("absent"), &link).unwrap();
        assert!(run(&ReportArgs { out: Some(link), ..args }).is_err());
        assert_eq!(std::fs::read_to_string(path).unwrap(), "mine");
    }

    #[test]
    fn of_a_long_file_there_is_the_end() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        std::fs::write(&path, "a\n".repeat(MOST_BYTES as usize) + "end\n").unwrap();
        let text = end_of(&path).unwrap();
        assert!(text.ends_with("\na\nend\n") && text.len() < MOST_BYTES as usize + 200);
    }

    #[test]
    fn a_unit_is_no_option_and_no_pattern() {
        assert!(parse_unit("tailwater@a.service").is_ok());
        for wrong in ["", "-H", "*", "a b"] {
            assert!(parse_unit(wrong).unwrap_err().contains("one unit"), "{wrong}");
        }
    }
}
