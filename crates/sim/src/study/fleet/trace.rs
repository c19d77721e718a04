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
//! | `start`, `end` | the interval, in seconds since any moment before | needed |
//! | `machine`, `service` | names | needed |
//! | `cpu` | mean use in cores; a service with less than a millionth has no load | needed |
//! | `max_cpu` | largest use within the interval, in cores | as `cpu`: no bursts |
//! | `class` | `latency-critical` or `best-effort` | `latency-critical` |
//! | `slo` | objective, as in `p99.9<1ms` | that of the command |
//! | `request` | service time of a request, as in `exp:10us` | that of the command |

use std::collections::BTreeMap;

use anyhow::{Context, bail, ensure};
use csv::StringRecord;

use crate::mix::Mix;
use crate::study::plan::{Slo, parse_slo};

/// Most cores that a row may use: those of the largest machine that is simulated.
const MAX_CPU: f64 = super::MAX_CORES as f64;
/// Fewest cores that are a load: bursts of a service that uses less are further apart than any run
/// is long.
const MIN_CPU: f64 = 1e-6;
/// What a first line has to begin with, for messages.
const EXAMPLE: &str = "start,end,machine,service,cpu[,max_cpu,class,slo,request]";

/// What one service used in one interval.
#[derive(Clone, Debug)]
pub(super) struct Load {
    /// Mean use in cores; at least [`MIN_CPU`].
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

/// A stretch of time in which the same rows of a machine hold, and services run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    start_s: f64,
    end_s: f64,
    /// Cores that the services use on average.
    pub(super) cpu: f64,
    /// Cores that they would use if all had their largest load at one moment.
    pub(super) max_cpu: f64,
}

impl Stretch {
    pub(super) fn seconds(&self) -> f64 {
        self.end_s - self.start_s
    }
}

/// The latency-critical services of a stretch.
#[derive(Clone, Debug)]
pub(super) struct Interval {
    /// With their names.
    pub(super) loads: Vec<(String, Load)>,
}

impl Interval {
    /// Returns the cores that its services use on average.
    pub(super) fn cpu(&self) -> f64 {
        self.loads.iter().map(|(_, load)| load.cpu).sum()
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
    /// Returns whether a latency-critical service has a load.
    pub(super) fn has_services(&self) -> bool {
        self.rows.iter().any(|row| row.load.is_some())
    }

    /// Returns the load of the largest maximum, and mean among these, of each latency-critical
    /// service.
    pub(super) fn hardest(&self) -> BTreeMap<&str, &Load> {
        let mut hardest: BTreeMap<&str, &Load> = BTreeMap::new();
        for (name, load) in self.rows.iter().filter_map(|row| Some((&*row.service, row.load.as_ref()?))) {
            let most = hardest.entry(name).or_insert(load);
            if (load.max_cpu, load.cpu) > (most.max_cpu, most.cpu) {
                *most = load;
            }
        }
        hardest
    }

    /// Returns the stretches in which services run, in order of time.
    pub(super) fn stretches(&self) -> Vec<Stretch> {
        // Each row changes the sums at its start and at its end.
        let mut changes: Vec<(f64, f64, Option<&Load>)> = self
            .rows
            .iter()
            .flat_map(|row| [(row.start_s, 1.0, row.load.as_ref()), (row.end_s, -1.0, row.load.as_ref())])
            .collect();
        changes.sort_by(|a, b| a.0.total_cmp(&b.0));
        let (mut services, mut cpu, mut max_cpu) = (0.0, 0.0, 0.0);
        let mut stretches = Vec::new();
        for (at, &(start_s, sign, load)) in changes.iter().enumerate() {
            if let Some(load) = load {
                services += sign;
                cpu += sign * load.cpu;
                max_cpu += sign * load.max_cpu;
            }
            match changes.get(at + 1) {
                Some(&(end_s, ..)) if end_s > start_s && services > 0.0 => {
                    stretches.push(Stretch { start_s, end_s, cpu, max_cpu });
                }
                _ => {}
            }
        }
        stretches
    }

    /// Returns the services of a stretch.
    pub(super) fn interval(&self, stretch: &Stretch) -> Interval {
        let active = |row: &&Row| row.start_s <= stretch.start_s && row.end_s >= stretch.end_s;
        let loads = self.rows.iter().filter(active);
        Interval { loads: loads.filter_map(|row| Some((row.service.clone(), row.load.clone()?))).collect() }
    }

    /// Returns the time from its first row to its last, in seconds.
    pub(super) fn seconds(&self) -> f64 {
        let begin = self.rows.iter().map(|row| row.start_s).fold(f64::INFINITY, f64::min);
        let end = self.rows.iter().map(|row| row.end_s).fold(f64::NEG_INFINITY, f64::max);
        end - begin
    }

    /// Returns the cores that best-effort work used on average over that time.
    pub(super) fn batch_cores(&self) -> f64 {
        let batch = self.rows.iter().filter(|row| row.load.is_none());
        // By hand: the sum of no numbers is -0.
        batch.map(|row| row.cpu * (row.end_s - row.start_s)).fold(0.0, |sum, used| sum + used)
            / self.seconds()
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
        machines.iter().any(MachineTrace::has_services),
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
        let load = (critical && cpu >= MIN_CPU).then_some(Load { cpu, max_cpu, slo, mix });
        let cpu = if critical { 0.0 } else { cpu };
        let service = name(self.service, "service")?;
        Ok((name(self.machine, "machine")?, Row { line, start_s, end_s, service, load, cpu }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stretches_are_those_of_the_same_services() {
        let defaults = Defaults { slo: parse_slo("p99<1ms").unwrap(), mix: Mix::parse("exp:10us").unwrap() };
        let text = "start,end,machine,service,cpu,max_cpu,class\n\
                    0,10,a,web,1,2,\n5,20,a,cache,0.5,4,\n10,30,a,batch,3,,best-effort\n30,40,a,web,2,2,\n";
        let machine = parse(text, &defaults).unwrap().remove(0);
        let stretches = machine.stretches();
        let seen = stretches.iter().map(|s| (s.start_s, s.end_s, s.cpu, s.max_cpu, machine.interval(s)));
        let seen: Vec<_> =
            seen.map(|(start, end, cpu, max, at)| (start, end, cpu, max, at.loads.len())).collect();
        assert_eq!(
            seen,
            [
                (0.0, 5.0, 1.0, 2.0, 1),
                (5.0, 10.0, 1.5, 6.0, 2),
                (10.0, 20.0, 0.5, 4.0, 1),
                (30.0, 40.0, 2.0, 2.0, 1)
            ]
        );
        assert_eq!((machine.seconds(), machine.batch_cores()), (40.0, 1.5));
        assert_eq!(machine.hardest()["web"].cpu, 2.0);
    }
}
