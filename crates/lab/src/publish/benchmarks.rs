//! The tables of the benchmarks, as data, and those whose rows are a list in the report.
//!
//! Owns which figures of a benchmark are published, beside which peer, the tail before the median.
//! The keys are those of the reports; a test of each benchmark has them as well.

use tailwater_plot::table::Table;

use super::lines::{Lines, push};
use super::results::Report;

pub const HANDOFF: &[Lines] = &[Lines {
    head: &["us, from the decision until the next owner runs", "Tailwater", "Linux: signal, then eventfd"],
    at: "",
    rows: &[
        ("p99, from a running batch job to a service, both awake", 1.0, &["/busy_p99_us", "/signal_p99_us"]),
        ("p50, the same", 1.0, &["/busy_p50_us", "/signal_p50_us"]),
        ("p99, to a kthread that is idle and still polls", 1.0, &["/idle_p99_us", "/signal_p99_us"]),
        ("p50, the same", 1.0, &["/idle_p50_us", "/signal_p50_us"]),
    ],
}];

pub const REQUEST: &[Lines] = &[Lines {
    head: &["us, until the first user thread runs", "with a request", "the same work without", "aim"],
    at: "/request_to_first_thread_us",
    rows: &[
        ("p99, the core is free", 1.0, &["/idle_p99", "/work_alone/idle_p99", ""]),
        ("p50, the same", 1.0, &["/idle_p50", "/work_alone/idle_p50", "=4"]),
        ("p99, a batch job holds the core", 1.0, &["/busy_p99", "/work_alone/busy_p99", ""]),
        ("p50, the same", 1.0, &["/busy_p50", "/work_alone/busy_p50", "=6"]),
    ],
}];

pub const CORES: &[Lines] = &[
    Lines {
        head: &[
            "a load that rises and falls, beside a batch job",
            "cores lent by congestion",
            "cores requested by the estimate",
        ],
        at: "",
        rows: &[
            (
                "p99.9 of 100 ms over that of a constant load, 90th percentile of the windows",
                1.0,
                &["/ramp/p999_over_steady/p90", "/ramp_arbiter/p999_over_steady/p90"],
            ),
            (
                "median of the windows",
                1.0,
                &["/ramp/p999_over_steady/p50", "/ramp_arbiter/p999_over_steady/p50"],
            ),
            ("ms by which cores follow the load", 1.0, &["/ramp/follow_ms", "/ramp_arbiter/follow_ms"]),
            (
                "the batch job's part of what requests leave",
                1.0,
                &["/ramp/batch_of_rest", "/ramp_arbiter/batch_of_rest"],
            ),
        ],
    },
    Lines {
        head: &[
            "a service at half load beside a batch job",
            "two programs",
            "one program, background threads",
            "the service alone",
            "ideal queue",
        ],
        at: "/demo_background",
        rows: &[
            ("p99, us", 1.0, &["/two_programs/p99_us", "/one_program/p99_us"]),
            (
                "p50, us",
                1.0,
                &["/two_programs/p50_us", "/one_program/p50_us", "/alone_p50_us", "/ideal_p50_us"],
            ),
            (
                "the batch job's speed, alone = 1",
                1.0,
                &["/two_programs/batch_share", "/one_program/batch_share", "", "/ideal_share"],
            ),
        ],
    },
];

pub const SWITCH: &[Lines] = &[Lines {
    head: &[
        "us, a UDP echo over a port and back",
        "a user thread on a socket",
        "floor: a bare kthread on its rings",
    ],
    at: "",
    rows: &[
        ("p99.9", 1.0, &["/echo_p999_us", "/raw_echo_p999_us"]),
        ("p99", 1.0, &["/echo_p99_us", "/raw_echo_p99_us"]),
        ("p50", 1.0, &["/echo_p50_us", "/raw_echo_p50_us"]),
    ],
}];

pub const TCP: &[Lines] = &[
    Lines {
        head: &["us, 64 bytes there and back", "Tailwater", "Linux, both sides spin", "Linux, both block"],
        at: "",
        rows: &[
            ("p99, one connection", 1.0, &["/rr_p99_us", "/kernel_rr_p99_us", "/kernel_rr_blocking_p99_us"]),
            ("p50, the same", 1.0, &["/rr_p50_us", "/kernel_rr_p50_us", "/kernel_rr_blocking_p50_us"]),
            ("p99, 64 connections", 1.0, &["/echo_p99_us", "", "/kernel_echo_p99_us"]),
            ("p50, the same", 1.0, &["/echo_p50_us", "", "/kernel_echo_p50_us"]),
        ],
    },
    Lines {
        head: &["thousand a second", "Tailwater", "Linux"],
        at: "",
        rows: &[
            ("requests over 64 connections, one at a time on each", 1e-3, &["/echo_rps", "/kernel_echo_rps"]),
            ("connections opened, used once and closed", 1e-3, &["/churn_cps", "/kernel_churn_cps"]),
        ],
    },
    Lines {
        head: &["Gbit/s", "Tailwater", "Linux's loopback device, packets of 64 KiB, two cores"],
        at: "",
        rows: &[
            ("between two programs that share a core", 1.0, &["/bulk_gbps", "/kernel_bulk_gbps"]),
            ("the same over 16 connections", 1.0, &["/bulk_shared_gbps", "/kernel_bulk_gbps"]),
            ("from a port to a program", 1.0, &["/bulk_upload_gbps", "/kernel_bulk_gbps"]),
            ("from a program to a port", 1.0, &["/bulk_download_gbps", "/kernel_bulk_gbps"]),
            ("within one program", 1.0, &["/bulk_loopback_gbps", "/kernel_bulk_gbps"]),
        ],
    },
];

pub const EVENTS: &[Lines] = &[
    Lines {
        head: &["echo of 64 bytes", "event loop", "user threads", "futures", "epoll on Linux"],
        at: "",
        rows: &[
            (
                "p50 of one connection, us",
                1.0,
                &["/rr_p50_us/events", "/rr_p50_us/threads", "/rr_p50_us/async", "/rr_p50_us/kernel_epoll"],
            ),
            (
                "requests over 64 connections, thousand/s",
                1e-3,
                &["/echo_rps/events", "/echo_rps/threads", "/echo_rps/async", "/echo_rps/kernel_epoll"],
            ),
        ],
    },
    Lines {
        head: &["an event loop's answers of 16 KiB", "shared bytes", "copied"],
        at: "/large_rps",
        rows: &[("thousand/s", 1e-3, &["/shared", "/copied"])],
    },
    Lines {
        head: &["hyper, HTTP/1.1 over 64 connections", "Tailwater", "Tokio on Linux"],
        at: "",
        rows: &[
            ("p50, us", 1.0, &["/hyper_p50_us", "/tokio_hyper_p50_us"]),
            ("answers, thousand/s", 1e-3, &["/hyper_rps", "/tokio_hyper_rps"]),
        ],
    },
];

pub const DISPATCH: &[Lines] = &[
    Lines {
        head: &["the spin server", "preempted after 5 us", "not preempted"],
        at: "",
        rows: &[
            ("p99 at a low load, us", 1.0, &["/low_load/dispatch_5us_us/p99", "/low_load/no_quantum_us/p99"]),
            ("p50, the same", 1.0, &["/low_load/dispatch_5us_us/p50", "/low_load/no_quantum_us/p50"]),
            ("requests of 1 us, million/s", 1.0, &["/fixed_1us_mrps/on_5us", "/fixed_1us_mrps/off"]),
            (
                "a batch job beside it, trials/s",
                1.0,
                &["/batch_beside/on_5us_trials_per_s", "/batch_beside/off_trials_per_s"],
            ),
        ],
    },
    Lines {
        head: &["thousand/s, 99 % of short requests within 50 us", "preempted after 5 us", "not preempted"],
        at: "",
        rows: &[
            (
                "99.5 % of 0.5 us, 0.5 % of 500 us",
                1e-3,
                &["/bimodal/load_preempt_rps", "/bimodal/load_no_preempt_rps"],
            ),
            (
                "the same, simulated",
                1e-3,
                &["/bimodal/simulated_preempt_rps", "/bimodal/simulated_no_preempt_rps"],
            ),
            ("RocksDB, GETs beside SCANs", 1e-3, &["/rocks/load_preempt_rps", "/rocks/load_no_preempt_rps"]),
        ],
    },
];

pub const NEIGHBOUR: &[Lines] = &[
    Lines {
        head: &[
            "beside a service at 30 % load and a batch job",
            "Tailwater",
            "Linux",
            "Tailwater, nothing else",
        ],
        at: "",
        rows: &[
            (
                "the service's windowed p99.9, us",
                1.0,
                &[
                    "/service_30/service_win_p999_us",
                    "/service_30/linux_service_win_p999_us",
                    "/service_30/service_win_p999_alone_us",
                ],
            ),
            (
                "the service's p99, us",
                1.0,
                &[
                    "/service_30/service_p99_us",
                    "/service_30/linux_service_p99_us",
                    "/service_30/service_p99_alone_us",
                ],
            ),
            (
                "p99 of an ordinary thread's wake-up, ms",
                1.0,
                &["/shell_p99_ms", "/service_30/linux_shell_p99_ms"],
            ),
            (
                "an ordinary process of 100 ms, ms",
                1.0,
                &["/service_30/process_ms", "/service_30/linux_process_ms"],
            ),
            (
                "the batch job's speed, alone = 1",
                1.0,
                &[
                    "/service_30/batch_share",
                    "/service_30/linux_batch_share",
                    "/service_30/batch_share_alone",
                ],
            ),
        ],
    },
    Lines {
        head: &["beside a batch job alone", "Tailwater", "Linux"],
        at: "/batch_only",
        rows: &[
            ("p99 of an ordinary thread's wake-up, ms", 1.0, &["/shell_p99_ms", "/linux_shell_p99_ms"]),
            (
                "p99 of one that is bound to a lent core, ms",
                1.0,
                &["/pinned_wake_p99_ms", "/linux_pinned_wake_p99_ms"],
            ),
            ("an ordinary process of 100 ms, ms", 1.0, &["/process_ms", "/linux_process_ms"]),
            (
                "the batch job's processor time, per cent of a core",
                1.0,
                &["/batch_cpu_percent", "/linux_batch_cpu_percent"],
            ),
        ],
    },
];

pub const PORTS: &[Lines] = &[Lines {
    head: &[
        "a Linux client of a service on this machine",
        "TAP",
        "AF_XDP on veth",
        "Linux, loopback",
        "Linux, veth",
    ],
    at: "",
    rows: &[
        (
            "windowed p99 at 8,000 requests/s, us",
            1.0,
            &["/tap/win_p99_us", "/xdp_veth/win_p99_us", "/loopback/win_p99_us", "/veth/win_p99_us"],
        ),
        ("p99, us", 1.0, &["/tap/p99_us", "/xdp_veth/p99_us", "/loopback/p99_us", "/veth/p99_us"]),
        ("p50, us", 1.0, &["/tap/p50_us", "/xdp_veth/p50_us", "/loopback/p50_us", "/veth/p50_us"]),
        (
            "requests over one connection, thousand/s",
            1e-3,
            &["/tap/rps_1", "/xdp_veth/rps_1", "/loopback/rps_1", "/veth/rps_1"],
        ),
        (
            "requests over 64 connections, thousand/s",
            1e-3,
            &["/tap/rps_64", "/xdp_veth/rps_64", "/loopback/rps_64", "/veth/rps_64"],
        ),
    ],
}];

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
        let at = ["/win_p999_us", "/p50_us", "/job_share"];
        let both =
            |at: &str| ["/tailwater", "/linux"].map(|system| row.figure(&format!("{system}{at}"), 1.0));
        push(
            &mut table,
            &row,
            format!("{}{load}", row.text("/job")),
            at.into_iter().flat_map(both).collect(),
        );
    }
    table
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

pub const HOSTILE: &[Lines] = &[Lines {
    head: &["ms without an exchange", "with the event", "as long a time without"],
    at: "",
    rows: &[
        (
            "most, the IOKernel is killed and started again",
            1.0,
            &["/restart/pause_max_ms", "/restart/undisturbed_max_ms"],
        ),
        (
            "most, another IOKernel takes over",
            1.0,
            &["/takeover/pause_max_ms", "/takeover/undisturbed_max_ms"],
        ),
        (
            "most, killed for good: a program that sleeps",
            1.0,
            &["/fallback/sleeper/max_ms", "/fallback/sleeper/undisturbed_max_ms"],
        ),
        ("p50, the same", 1.0, &["/fallback/sleeper/p50_ms", "/fallback/sleeper/undisturbed_p50_ms"]),
    ],
}];

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
