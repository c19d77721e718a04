//! The tables of benchmarks whose rows are a list in the report; `tables.txt` has the others.
//!
//! Owns which figures of a benchmark are published, beside which peer, the tail before the median.

use tailwater_plot::table::Table;

use super::lines::push;
use super::results::Report;

/// Threads that a program creates, by where they are placed.
pub fn creation(report: &Report<'_>) -> Table {
    let mut table =
        Table::new(&["16 threads of 2 us on two kthreads", "p99 to start, us", "p50, us"].join(" | "));
    for row in report.items("/creation") {
        let label = format!("{}, placed {}", row.text("/load"), row.text("/placement"));
        push(
            &mut table,
            &row,
            label,
            ["/start_us/p99", "/start_us/p50"].map(|at| row.figure(at, 1.0)).to_vec(),
        );
    }
    table
}

/// The IOKernel's loop by the number of cores and of programs.
pub fn scale(report: &Report<'_>) -> Table {
    let head = [
        "cores, programs",
        "look that lends a core, p99, ns",
        "p50",
        "look that changes nothing, p50, ns",
        "the rest of the iteration, p50, ns",
        "looks until a core is lent, p99",
    ];
    let mut table = Table::new(&head.join(" | "));
    for row in report.items("/scale") {
        let number = |at| row.median(at).map_or_else(String::new, |number| number.to_string());
        let label = format!("{}, {}", number("/cores"), number("/programs"));
        let at = ["/grant_p99_ns", "/grant_p50_ns", "/look_p50_ns", "/pass_p50_ns", "/looks_to_grant_p99"];
        push(&mut table, &row, label, at.map(|at| row.figure(at, 1.0)).to_vec());
    }
    table
}

/// Services that share cores, each situation beside one service with the same load.
pub fn services(report: &Report<'_>) -> Table {
    let mut table = Table::new(
        &[
            "loads, % of the shared cores",
            "windowed p99.9, us",
            "p99, us",
            "p50, us",
            "answered, of those due",
        ]
        .join(" | "),
    );
    for situation in report.items("/situations") {
        let services = situation.items("/services");
        let loads: Vec<String> =
            services.iter().filter_map(|service| Some(service.median("/load")?.to_string())).collect();
        // Services of equal load are alike: the first stands for them.
        let Some(first) = services.first() else { continue };
        let label =
            if services.len() == 1 { loads[0].clone() } else { format!("{}, the first", loads.join(" + ")) };
        let at = ["/win_p999_us", "/p99_us", "/p50_us", "/answered"];
        push(&mut table, first, label, at.map(|at| first.figure(at, 1.0)).to_vec());
    }
    table
}

/// Returns each of these figures on Tailwater and, behind it, on Linux.
fn on_both(row: &Report<'_>, at: [&str; 3]) -> Vec<String> {
    let both = |at: &str| ["/tailwater", "/linux"].map(|system| row.figure(&format!("{system}{at}"), 1.0));
    at.into_iter().flat_map(both).collect()
}

/// A service beside programs of the system as batch jobs, on Tailwater and on Linux.
pub fn programs(report: &Report<'_>) -> Table {
    let head = [
        "batch job, load of the service",
        "windowed p99.9, us",
        "Linux",
        "p50, us",
        "Linux",
        "job, alone = 1",
        "Linux",
    ];
    let mut table = Table::new(&head.join(" | "));
    for row in report.items("/beside") {
        let load = row.median("/load").map_or_else(String::new, |load| format!(", {load} %"));
        let figures = on_both(&row, ["/win_p999_us", "/p50_us", "/job_share"]);
        push(&mut table, &row, format!("{}{load}", row.text("/job")), figures);
    }
    table
}

/// Programs as they are, on Tailwater and on Linux: services, then what uses no socket.
pub fn posix(report: &Report<'_>) -> Vec<Table> {
    let head = [
        "50 connections",
        "requests/s",
        "Linux",
        "p99, us",
        "Linux",
        "us of processor time a request",
        "Linux",
    ];
    let mut services = Table::new(&head.join(" | "));
    for row in report.items("/served") {
        let figures = on_both(&row, ["/requests_s", "/p99_us", "/cpu_us"]);
        push(&mut services, &row, row.text("/program").to_owned(), figures);
    }
    let mut computing = Table::new("user time, s | Tailwater | Linux");
    let mut waits = Table::new("a hand-off between two threads, ns | Tailwater | Linux");
    for (table, items) in [(&mut computing, "/computing"), (&mut waits, "/waits")] {
        for row in report.items(items) {
            let figures = ["/tailwater", "/linux"].map(|at| row.figure(at, 1.0)).to_vec();
            push(table, &row, row.text("/name").to_owned(), figures);
        }
    }
    let mut idle = Table::new("without clients, % of a core | the service | the IOKernel");
    let figures = ["/idle_percent/0", "/idle_percent/1"].map(|at| report.figure(at, 1.0));
    push(&mut idle, report, "redis".to_owned(), figures.to_vec());
    vec![services, computing, waits, idle]
}

/// A service before and beside each attacker.
pub fn attacks(report: &Report<'_>) -> Table {
    let mut table = Table::new(
        &["attacker", "windowed p99.9, us", "before", "p50, us", "before", "requests lost"].join(" | "),
    );
    for row in report.items("/attacks") {
        let fresh = row.value("/fresh_users").and_then(serde_json::Value::as_bool) == Some(true);
        let label = format!("{}{}", row.text("/name"), if fresh { ", as ever new users" } else { "" });
        let at = [
            "/during/win_p999_us",
            "/before/win_p999_us",
            "/during/p50_us",
            "/before/p50_us",
            "/during/lost",
        ];
        push(&mut table, &row, label, at.map(|at| row.figure(at, 1.0)).to_vec());
    }
    table
}

/// Processor time and tail by load, sleeping beside polling.
pub fn energy(report: &Report<'_>) -> Vec<Table> {
    let ways = ["sleeping, announced", "sleeping, unannounced", "polling"];
    let keys = ["sleeping", "unannounced", "polling"];
    let busy = [&["load, %; per cent of all cores in use"][..], &ways, &["most accepted"]].concat();
    let p99 = [&["load, %; p99, us"][..], &ways].concat();
    let (mut busy, mut p99) = (Table::new(&busy.join(" | ")), Table::new(&p99.join(" | ")));
    for row in report.items("/loads") {
        let Some(load) = row.median("/load") else { continue };
        let label = (100.0 * load).to_string();
        let of = |key: &str, scale| keys.map(|way| row.figure(&format!("/{way}/{key}"), scale)).to_vec();
        push(&mut p99, &row, label.clone(), of("p99_us", 1.0));
        push(&mut busy, &row, label, [of("busy", 100.0), vec![row.figure("/busy_bar", 100.0)]].concat());
    }
    vec![p99, busy]
}
