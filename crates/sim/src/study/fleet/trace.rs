//! A fleet's trace: what each service of each machine used, by interval.
//!
//! Owns the columns of the CSV file and their checks. A trace that was read is sound: each row has
//! a service, a machine and a load, and no service of a machine has two rows for one moment.
//!
//! The columns are found by their names in the first line; others, such as those of memory and
//! disks, are ignored. A file without a first line, as cluster traces are published, has its names
//! from the command; such traces also have other units, and more than one column for a name.
//!
//! | column | is | without it, or empty |
//! |---|---|---|
//! | `start`, `end` | the interval, in seconds since any moment before | needed, or `start_us` and `end_us`, in microseconds |
//! | `machine`, `service` | names | needed |
//! | `task` | a part of the service | the service has one |
//! | `cpu` | mean use in cores; a service with less than a millionth has no load | needed, or `cpu_share`, of a machine with a number of cores that the command has; empty: nothing was measured, and the row does not count |
//! | `max_cpu`, `max_cpu_share` | largest use within the interval | as the mean: no bursts |
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
/// All names of columns.
const NAMES: [&str; 14] = [
    "start",
    "start_us",
    "end",
    "end_us",
    "machine",
    "service",
    "task",
    "cpu",
    "cpu_share",
    "max_cpu",
    "max_cpu_share",
    "class",
    "slo",
    "request",
];

/// Those of which a file has one: the same in two units.
const PAIRS: [(&str, &str); 4] =
    [("start", "start_us"), ("end", "end_us"), ("cpu", "cpu_share"), ("max_cpu", "max_cpu_share")];

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

/// What the command says of a trace.
pub(super) struct Defaults<'a> {
    /// The objective where a row has none.
    pub(super) slo: Slo,
    /// The requests where a row has none.
    pub(super) mix: Mix,
    /// Names of the columns of a file without a first line.
    pub(super) columns: Option<&'a str>,
    /// Cores of the machine of which uses are shares.
    pub(super) machine_cores: Option<f64>,
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
pub(super) fn parse(text: &str, defaults: &Defaults<'_>) -> anyhow::Result<Vec<MachineTrace>> {
    let mut reader = csv::ReaderBuilder::new();
    reader.comment(Some(b'#')).trim(csv::Trim::All).has_headers(defaults.columns.is_none());
    // Columns behind those that are named are not needed.
    let mut reader = reader.flexible(defaults.columns.is_some()).from_reader(text.as_bytes());
    let names = match defaults.columns {
        Some(list) => names_of(list)?,
        None => reader.headers().context("the first line is not CSV")?.clone(),
    };
    let columns = Columns::of(&names, defaults)?;
    let mut machines: BTreeMap<String, Vec<Row>> = BTreeMap::new();
    for record in reader.records() {
        let record = record.map_err(|error| not_csv(&error))?;
        if let Some((machine, row)) = columns.row(&record, defaults)? {
            machines.entry(machine).or_default().push(row);
        }
    }
    let machines: Vec<_> = machines.into_iter().map(|(name, rows)| MachineTrace { name, rows }).collect();
    machines.iter().try_for_each(check_overlaps)?;
    ensure!(
        machines.iter().any(MachineTrace::has_services),
        "the trace has no latency-critical service with a load"
    );
    Ok(machines)
}

/// Reads the names of columns that the command has; those of others are empty.
fn names_of(list: &str) -> anyhow::Result<StringRecord> {
    let names: Vec<&str> = list.split(',').map(str::trim).collect();
    for name in names.iter().filter(|name| !name.is_empty()) {
        let known = NAMES.join(", ");
        ensure!(
            NAMES.contains(name),
            "--columns: `{name}` is none of {known}; leave the names of others empty"
        );
        let times = names.iter().filter(|other| *other == name).count();
        ensure!(times == 1, "--columns: `{name}` is there {times} times; leave the names of others empty");
    }
    for (one, other) in PAIRS {
        ensure!(
            !(names.contains(&one) && names.contains(&other)),
            "--columns: `{one}` and `{other}` are the same in two units: name one of them"
        );
    }
    Ok(StringRecord::from(names))
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

/// A column of numbers.
struct Numbers {
    at: usize,
    name: &'static str,
    /// What they are numbers of, and one of them in seconds or cores.
    unit: (&'static str, f64),
}

/// The columns.
struct Columns {
    /// Number of fields that a row has at least.
    fields: usize,
    start: Numbers,
    end: Numbers,
    machine: usize,
    service: usize,
    task: Option<usize>,
    cpu: Numbers,
    max_cpu: Option<Numbers>,
    class: Option<usize>,
    slo: Option<usize>,
    request: Option<usize>,
}

impl Columns {
    fn of(names: &StringRecord, defaults: &Defaults<'_>) -> anyhow::Result<Self> {
        let find = |name: &str| names.iter().position(|column| column == name);
        let need = |name: &str| {
            let there = names.iter().collect::<Vec<_>>().join(",");
            let first = if defaults.columns.is_some() { "--columns" } else { "line 1" };
            let other = PAIRS.iter().find(|pair| pair.0 == name);
            let other = other.map(|pair| format!(" or `{}`", pair.1)).unwrap_or_default();
            format!("{first}: there is no column `{name}`{other} in `{there}`: name them, as in {EXAMPLE}")
        };
        let needed = |name: &str| find(name).with_context(|| need(name));
        let numbers = |name, unit| find(name).map(|at| Numbers { at, name, unit });
        let time = |seconds, micros| {
            numbers(seconds, ("seconds", 1.0)).or_else(|| numbers(micros, ("microseconds", 1e-6)))
        };
        let shares = defaults.machine_cores.unwrap_or(f64::NAN);
        let used =
            |cores, share| numbers(cores, ("cores", 1.0)).or_else(|| numbers(share, ("shares", shares)));
        let (cpu, max_cpu) = (used("cpu", "cpu_share"), used("max_cpu", "max_cpu_share"));
        let has_shares = cpu.iter().chain(&max_cpu).any(|column| column.unit.0 == "shares");
        ensure!(
            has_shares == defaults.machine_cores.is_some(),
            "--machine-cores and the columns cpu_share and max_cpu_share, shares of such a machine, go together"
        );
        Ok(Self {
            fields: names.len(),
            start: time("start", "start_us").with_context(|| need("start"))?,
            end: time("end", "end_us").with_context(|| need("end"))?,
            machine: needed("machine")?,
            service: needed("service")?,
            task: find("task"),
            cpu: cpu.with_context(|| need("cpu"))?,
            max_cpu,
            class: find("class"),
            slo: find("slo"),
            request: find("request"),
        })
    }

    /// Returns the machine of a row, and the row; `None` if nothing was measured.
    fn row(&self, record: &StringRecord, defaults: &Defaults<'_>) -> anyhow::Result<Option<(String, Row)>> {
        let line = record.position().map_or(0, csv::Position::line);
        let (fields, least) = (record.len(), self.fields);
        ensure!(fields >= least, "line {line}: {fields} fields; --columns names {least}");
        let at = |column: usize| format!("line {line}, column {}", column + 1);
        let number = |Numbers { at: column, name, unit }: &Numbers| -> anyhow::Result<f64> {
            let field = &record[*column];
            let value = field.parse::<f64>().ok().filter(|value| value.is_finite() && *value >= 0.0);
            let value = value
                .with_context(|| format!("{} ({name}): `{field}` is no number of {}", at(*column), unit.0))?;
            Ok(value * unit.1)
        };
        let name = |column: usize, what: &str| {
            ensure!(!record[column].is_empty(), "{} ({what}): a name is missing", at(column));
            Ok(record[column].to_owned())
        };
        // An empty field is as one that is not there.
        let given =
            |column: Option<usize>| Some((column?, &record[column?])).filter(|(_, text)| !text.is_empty());

        if self.cpu.unit.0 == "shares" && record[self.cpu.at].is_empty() {
            return Ok(None);
        }
        let (start_s, end_s) = (number(&self.start)?, number(&self.end)?);
        ensure!(start_s < end_s, "{} (end): {end_s} s is not after the start, {start_s} s", at(self.end.at));
        let cpu = number(&self.cpu)?;
        ensure!(
            cpu <= MAX_CPU,
            "{} ({}): `{}` makes {cpu} cores: at most {MAX_CPU}; is this a percentage?",
            at(self.cpu.at),
            self.cpu.name,
            &record[self.cpu.at]
        );
        let max_cpu = match self.max_cpu.as_ref().filter(|column| !record[column.at].is_empty()) {
            None => cpu,
            // The largest of samples may be below the mean.
            Some(column) if column.unit.0 == "shares" => number(column)?.max(cpu),
            Some(column) => number(column)?,
        };
        ensure!(
            (cpu..=MAX_CPU).contains(&max_cpu),
            "{} (max_cpu): {max_cpu} cores: at least cpu, which is {cpu}, and at most {MAX_CPU}",
            at(self.max_cpu.as_ref().map_or(self.cpu.at, |column| column.at))
        );
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
        let mut service = name(self.service, "service")?;
        if let Some((_, task)) = given(self.task) {
            service = format!("{service}/{task}");
        }
        Ok(Some((name(self.machine, "machine")?, Row { line, start_s, end_s, service, load, cpu })))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn defaults(columns: Option<&str>, machine_cores: Option<f64>) -> Defaults<'_> {
        let (slo, mix) = (parse_slo("p99<1ms").unwrap(), Mix::parse("exp:10us").unwrap());
        Defaults { slo, mix, columns, machine_cores }
    }

    /// The columns of `task_usage` of Google's trace of 2011, as far as they count.
    const GOOGLE: &str = "start_us,end_us,service,task,machine,cpu_share,,,,,,,,max_cpu_share";

    #[test]
    fn a_published_trace_is_read_as_it_is() {
        // The maximum of samples is below the mean in the second row; in the third nothing was
        // measured.
        let text = "600000000,900000000,6251,0,5,0.25,.1,.1,.1,.1,.1,0,0,0.5,0,1.5,.01,1,0,.2\n\
                    600000000,900000000,6251,1,5,0.125,.1,.1,.1,.1,.1,0,0,0.1,0,1.5,.01,1,0,.2\n\
                    600000000,900000000,6251,2,5,,.1,.1,.1,.1,.1,0,0,,0,1.5,.01,1,0,\n";
        let machine = parse(text, &defaults(Some(GOOGLE), Some(16.0))).unwrap().remove(0);
        let loads = machine.hardest();
        let load = |name: &str| (loads[name].cpu, loads[name].max_cpu);
        assert_eq!((load("6251/0"), load("6251/1"), loads.len()), ((4.0, 8.0), (2.0, 2.0), 2));
        assert_eq!((&*machine.name, machine.seconds()), ("5", 300.0));
    }

    #[test]
    fn names_and_shares_without_sense_are_refused() {
        let row = "600000000,900000000,6251,0,5,0.25,.1,.1,.1,.1,.1,0,0,0.5\n";
        for (columns, cores, text, part) in [
            (GOOGLE, None, row, "--machine-cores"),
            ("start,end,service,,machine,cpu", Some(16.0), row, "--machine-cores"),
            ("strat_us,end_us,service,task,machine,cpu", None, row, "`strat_us` is none of start, start_us"),
            ("start_us,end_us,service,task,,cpu", None, row, "no column `machine`"),
            (GOOGLE, Some(16.0), "1,2,3,4,5,0.25\n", "line 1: 6 fields; --columns names 14"),
            ("start,end,start,machine,service,cpu", None, row, "`start` is there 2 times"),
            ("start,start_us,end,machine,service,cpu", None, row, "`start` and `start_us`"),
            ("start,end,machine,service", None, row, "no column `cpu` or `cpu_share`"),
            (GOOGLE, Some(1e4), &row.replace("0.25", "200"), "(cpu_share): `200` makes 2000000 cores"),
        ] {
            let why = format!("{:#}", parse(text, &defaults(Some(columns), cores)).unwrap_err());
            assert!(why.contains(part), "{columns}: {why}");
        }
    }

    #[test]
    fn stretches_are_those_of_the_same_services() {
        let defaults = defaults(None, None);
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
