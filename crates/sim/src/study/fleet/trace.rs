//! A fleet's trace: what each service of each machine used, by interval.
//!
//! Owns the columns of the CSV file and their checks. A trace that was read is sound: each row has
//! a service, a machine and a load, and no service of a machine has two rows for one moment.
//!
//! The columns are found by their names in the first line; others, such as those of memory and
//! disks, are ignored. They are those of cluster traces that are published (Google's `task_usage`
//! of 2011 has start, end, job, machine, mean and maximum CPU rate), with units and an objective:
//!
//! | column | is | without it, or empty |
//! |---|---|---|
//! | `start`, `end` | the interval, in seconds since any moment | needed |
//! | `machine`, `service` | names | needed |
//! | `cpu` | mean use in cores | needed |
//! | `max_cpu` | largest use within the interval, in cores | as `cpu`: no bursts |
//! | `class` | `latency-critical` or `best-effort` | `latency-critical` |
//! | `slo` | objective, as in `p99.9<1ms` | that of the command |
//! | `request` | service time of a request, as in `exp:10us` | that of the command |

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use csv::StringRecord;

use crate::mix::Mix;
use crate::study::plan::{Slo, parse_slo};

/// Most cores that a row may use: beyond the largest machine that is simulated.
const MAX_CPU: f64 = 1024.0;
/// What a first line has to begin with, for messages.
const EXAMPLE: &str = "start,end,machine,service,cpu[,max_cpu,class,slo,request]";

/// What one service used in one interval.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Mean use in cores; above 0.
    pub(super) cpu: f64,
    /// Largest use in cores; at least the mean.
    pub(super) max_cpu: f64,
    /// What it asks of its latency.
    pub(super) slo: Slo,
    /// Its requests.
    pub(super) mix: Mix,
}

/// One row.
#[derive(Clone, Debug)]
struct Row {
    line: u64,
    start_s: f64,
    end_s: f64,
    service: String,
    /// `None`: best-effort work of that many cores.
    load: Option<Load>,
    cpu: f64,
}

/// A stretch of time in which the load of a machine does not change.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    pub(super) seconds: f64,
    /// Its latency-critical services, by name.
    pub(super) loads: Vec<(String, Load)>,
}

impl Interval {
    /// Returns the cores that its services use on average.
    pub(super) fn cpu(&self) -> f64 {
        self.loads.iter().map(|(_, load)| load.cpu).sum()
    }

    /// Returns the cores that they would use if all had their largest load at one moment.
    pub(super) fn max_cpu(&self) -> f64 {
        self.loads.iter().map(|(_, load)| load.max_cpu).sum()
    }
}

/// One machine of the trace.
#[derive(Clone, Debug)]
pub(super) struct MachineTrace {
    pub(super) name: String,
    rows: Vec<Row>,
}

/// What a trace says where a row is silent.
pub(super) struct Defaults {
    pub(super) slo: Slo,
    pub(super) mix: Mix,
}

impl MachineTrace {
    /// Returns the names of its latency-critical services.
    pub(super) fn services(&self) -> Vec<&str> {
        let mut names: Vec<_> =
            self.rows.iter().filter(|row| row.load.is_some()).map(|row| &*row.service).collect();
        names.sort_unstable();
        names.dedup();
        names
    }

    /// Returns the stretches in which services run, in order of time.
    pub(super) fn intervals(&self) -> Vec<Interval> {
        let mut times: Vec<f64> = self.rows.iter().flat_map(|row| [row.start_s, row.end_s]).collect();
        times.sort_by(f64::total_cmp);
        times.dedup();
        let between = |pair: &[f64]| {
            let (start, end) = (pair[0], pair[1]);
            let active = self.rows.iter().filter(|row| row.start_s <= start && row.end_s >= end);
            let loads = active.filter_map(|row| Some((row.service.clone(), row.load.clone()?))).collect();
            Interval { seconds: end - start, loads }
        };
        times.windows(2).map(between).filter(|interval| !interval.loads.is_empty()).collect()
    }

    /// Returns the cores that best-effort work used on average over the time of the whole trace of
    /// this machine.
    pub(super) fn batch_cores(&self) -> f64 {
        let begin = self.rows.iter().map(|row| row.start_s).fold(f64::INFINITY, f64::min);
        let end = self.rows.iter().map(|row| row.end_s).fold(f64::NEG_INFINITY, f64::max);
        let batch = self.rows.iter().filter(|row| row.load.is_none());
        batch.map(|row| row.cpu * (row.end_s - row.start_s)).fold(0.0, |sum, used| sum + used) / (end - begin)
    }
}

/// Reads a trace.
///
/// # Errors
///
/// If a column is missing, or a row does not make sense; the message has line and column, and what
/// is expected there.
pub(super) fn parse(text: &str, defaults: &Defaults) -> anyhow::Result<Vec<MachineTrace>> {
    let mut reader =
        csv::ReaderBuilder::new().comment(Some(b'#')).trim(csv::Trim::All).from_reader(text.as_bytes());
    let columns = Columns::of(reader.headers().context("the first line is not CSV")?)?;
    let mut machines: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for record in reader.records() {
        let record = record.map_err(|error| not_csv(&error))?;
        let (machine, row) = columns.row(&record, defaults)?;
        machines.entry(machine).or_default().push(row);
    }
    let machines: Vec<_> = machines.into_iter().map(|(name, rows)| MachineTrace { name, rows }).collect();
    machines.iter().try_for_each(check_overlaps)?;
    ensure!(
        machines.iter().any(|machine| !machine.services().is_empty()),
        "the trace has no latency-critical service with a load"
    );
    Ok(machines)
}

/// Says which line of a file is not CSV of its first line's columns.
fn not_csv(error: &csv::Error) -> anyhow::Error {
    let line = error.position().map_or(0, csv::Position::line);
    match error.kind() {
        csv::ErrorKind::UnequalLengths { expected_len, len, .. } => {
            anyhow::anyhow!("line {line}: {len} fields; the first line names {expected_len} columns")
        }
        _ => anyhow::anyhow!("line {line}: {error}"),
    }
}

/// Refuses two rows of one service on one machine for one moment.
fn check_overlaps(machine: &MachineTrace) -> anyhow::Result<()> {
    let mut rows: Vec<&Row> = machine.rows.iter().collect();
    rows.sort_by(|a, b| a.service.cmp(&b.service).then(a.start_s.total_cmp(&b.start_s)));
    for pair in rows.windows(2) {
        ensure!(
            pair[0].service != pair[1].service || pair[0].end_s <= pair[1].start_s,
            "line {}: `{}` on machine `{}` has line {} for the same time: give each of its processes a name of its \
             own, or add their use up",
            pair[1].line.max(pair[0].line),
            pair[0].service,
            machine.name,
            pair[0].line.min(pair[1].line)
        );
    }
    Ok(())
}

/// Positions of the columns.
struct Columns {
    start: usize,
    end: usize,
    machine: usize,
    service: usize,
    cpu: usize,
    max_cpu: Option<usize>,
    class: Option<usize>,
    slo: Option<usize>,
    request: Option<usize>,
}

impl Columns {
    fn of(header: &StringRecord) -> anyhow::Result<Self> {
        let find = |name: &str| header.iter().position(|column| column == name);
        let need = |name: &str| {
            find(name).with_context(|| {
                let there = header.iter().collect::<Vec<_>>().join(",");
                format!("line 1: there is no column `{name}` in `{there}`: the first line names them, as in {EXAMPLE}")
            })
        };
        Ok(Self {
            start: need("start")?,
            end: need("end")?,
            machine: need("machine")?,
            service: need("service")?,
            cpu: need("cpu")?,
            max_cpu: find("max_cpu"),
            class: find("class"),
            slo: find("slo"),
            request: find("request"),
        })
    }

    /// Returns the machine of a row, and the row.
    fn row(&self, record: &StringRecord, defaults: &Defaults) -> anyhow::Result<(String, Row)> {
        let line = record.position().map_or(0, csv::Position::line);
        let at = |column: usize| format!("line {line}, column {}", column + 1);
        let number = |column: usize, name: &str, unit: &str| -> anyhow::Result<f64> {
            let field = &record[column];
            let value = field.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
            value.with_context(|| format!("{} ({name}): `{field}` is no number of {unit}", at(column)))
        };
        let name = |column: usize, what: &str| {
            ensure!(!record[column].is_empty(), "{} ({what}): a name is missing", at(column));
            Ok(record[column].to_owned())
        };
        // An empty field is as one that is not there.
        let given =
            |column: Option<usize>| Some((column?, &record[column?])).filter(|(_, text)| !text.is_empty());

        let (start_s, end_s) = (number(self.start, "start", "seconds")?, number(self.end, "end", "seconds")?);
        ensure!(start_s < end_s, "{} (end): {end_s} s is not after the start, {start_s} s", at(self.end));
        let cpu = number(self.cpu, "cpu", "cores")?;
        ensure!(
            cpu <= MAX_CPU,
            "{} (cpu): {cpu} cores: at most {MAX_CPU}; is this a percentage?",
            at(self.cpu)
        );
        let max_cpu = match given(self.max_cpu) {
            None => cpu,
            Some((column, _)) => {
                let max_cpu = number(column, "max_cpu", "cores")?;
                ensure!(
                    (cpu..=MAX_CPU).contains(&max_cpu),
                    "{} (max_cpu): {max_cpu} cores: at least cpu, which is {cpu}, and at most {MAX_CPU}",
                    at(column)
                );
                max_cpu
            }
        };
        let critical = match given(self.class) {
            None | Some((_, "latency-critical")) => true,
            Some((_, "best-effort")) => false,
            Some((column, other)) => {
                bail!("{} (class): `{other}`: write latency-critical or best-effort", at(column))
            }
        };
        let slo = match given(self.slo) {
            None => defaults.slo,
            Some((column, text)) => parse_slo(text).with_context(|| format!("{} (slo)", at(column)))?,
        };
        let mix = match given(self.request) {
            None => defaults.mix.clone(),
            Some((column, text)) => Mix::parse(text).with_context(|| format!("{} (request)", at(column)))?,
        };
        // A service without load has no latency.
        let load = (critical && cpu > 0.0).then_some(Load { cpu, max_cpu, slo, mix });
        let cpu = if critical { 0.0 } else { cpu };
        let service = name(self.service, "service")?;
        Ok((name(self.machine, "machine")?, Row { line, start_s, end_s, service, load, cpu }))
    }
}
