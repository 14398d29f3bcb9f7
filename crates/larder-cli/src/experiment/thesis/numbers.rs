//! The numbers that Endo's thesis (2001) gives in its tables 2.1, 2.2 and 3.1, and what its text says of the figures, whose values it
//! does not print. Origin 2000: 80 processors in 40 nodes; Enterprise 10000: 64 processors, one memory.

/// Threads of table 2.1.
pub const THREADS: [usize; 7] = [1, 8, 16, 24, 32, 48, 64];

/// Table 2.1: million allocations a second by all threads.
pub const THROUGHPUT: [(&str, [f64; 7]); 5] = [
    ("PS", [0.70, 4.88, 8.96, 12.47, 14.95, 15.42, 14.93]),
    ("LPS(k=1)", [0.69, 5.01, 9.16, 12.94, 15.66, 21.08, 25.68]),
    ("LPS(k=1.5)", [0.69, 4.99, 9.13, 12.73, 15.78, 20.82, 26.06]),
    ("AL", [0.70, 5.05, 8.90, 12.09, 15.88, 21.33, 25.40]),
    ("libc", [0.98, 0.16, 0.10, 0.07, 0.07, 0.10, 0.05]),
];

/// Table 2.2: megabytes allocated, allocations, seconds without collections, allocations a second. Origin 2000, 64 threads.
pub const BEHAVIOUR: [(&str, [&str; 4]); 3] = [
    ("matmul", ["496.2", "65.1K", "25.7", "2.54K"]),
    ("bh-pt", ["2223", "28.6M", "174.6", "164K"]),
    ("cky", ["1203", "79.2M", "68.5", "1.16M"]),
];

/// Table 3.1: collections, seconds, most living megabytes, heap megabytes. Enterprise 10000, 60 threads.
pub const COLLECTIONS: [(&str, [&str; 4]); 4] = [
    ("bh-pt", ["20", "33.4", "34.9", "50"]),
    ("bh-st", ["18", "63.3", "29.4", "50"]),
    ("cky", ["38", "47.8", "33.7", "50"]),
    ("cube", ["15", "15.29", "17.2", "30"]),
];

/// What the text says of figure 2.5.
pub const FIGURE_2_5: &str = "The thesis: with PS the memory is about the same for every number of threads; with AL it is about 5P MB for P threads; \
    with LPS it is PS's at k = 1 and grows with k. Remote pages: 0 with AL, about 1 - 1/P with PS, between them with LPS, and fewer than with PS even at k = 1.";

/// And of figures 2.6 to 2.8.
pub const FIGURES_2_6_TO_2_8: [(&str, &str); 3] = [
    (
        "matmul",
        "The thesis: similar memory in every setting; no remote pages with LPS(k=1.5) and AL; LPS and AL are 3 to 19 % faster than PS.",
    ),
    (
        "bh-pt",
        "The thesis: AL takes more memory than PS; with 64 threads LPS(k=1.5) is 2 % and AL about 4 % faster than PS.",
    ),
    (
        "cky",
        "The thesis: AL takes three times PS's memory; AL and LPS are 2 to 5 % faster than PS; no speed-up beyond 16 threads.",
    ),
];

/// Of figures 3.5 and 3.6: the share of collection in the time, in per cent, with the simple and with the full collector.
pub const SHARES: [(&str, &str, f64, f64); 5] = [
    ("cky", "Enterprise 10000, 60 processors", 30.0, 9.0),
    ("cky", "Origin 2000, 64 processors", 35.0, 6.0),
    ("cube", "Enterprise 10000, 64 processors", 17.0, 4.0),
    ("bh-st", "Origin 2000, 60 processors", 4.8, 1.9),
    ("bh-pt", "Origin 2000, 60 processors", 8.5, 3.6),
];

/// Of figures 3.7 to 3.10.
pub const SPEED_UP: &str = "The thesis: Opt reaches 26 to 32-fold in BH and CKY and 19-fold in Cube on 60 processors of the Enterprise 10000; on 64 of the \
    Origin 2000 20-fold in CKY, 13-fold in BH-pt, 7-fold in BH-st. Simple does not speed up in any program. No-Opt reaches its peak at 32 processors (CKY) or 8 (BH-st), \
    and on the Origin 2000 Opt is 2 to 3 times as fast. Without NSB BH-pt gets at most 14-fold; without BMB BH-st 4-fold instead of 7.";

/// Threads of tables 5.1 and 5.2; on the Origin 2000 the last number is 64.
pub const THREADS_5: [usize; 6] = [1, 8, 16, 32, 48, 60];

/// Pauses of a program on a machine in milliseconds: Stop's average and worst, Conc-VM's (its last phase).
pub struct Pauses {
    /// The program.
    pub program: &'static str,
    /// The machine.
    pub machine: &'static str,
    /// At each of [`THREADS_5`].
    pub stop: [[u16; 6]; 2],
    /// As above.
    pub conc_vm: [[u16; 6]; 2],
}

/// Tables 5.1 and 5.2.
pub const PAUSES: [Pauses; 6] = [
    Pauses {
        program: "bh-pt",
        machine: "E10K",
        stop: [[259, 77, 43, 34, 34, 37], [360, 104, 53, 50, 42, 46]],
        conc_vm: [[193, 24, 18, 19, 23, 27], [347, 41, 27, 29, 37, 40]],
    },
    Pauses {
        program: "cky",
        machine: "E10K",
        stop: [[518, 125, 65, 42, 41, 47], [1307, 214, 99, 61, 55, 57]],
        conc_vm: [[161, 51, 33, 27, 30, 35], [269, 79, 52, 43, 38, 46]],
    },
    Pauses {
        program: "cube",
        machine: "E10K",
        stop: [[288, 59, 47, 36, 46, 47], [452, 88, 83, 55, 58, 67]],
        conc_vm: [[206, 34, 36, 27, 35, 42], [283, 56, 62, 49, 59, 57]],
    },
    Pauses {
        program: "bh-pt",
        machine: "O2K",
        stop: [[131, 53, 51, 52, 58, 73], [285, 72, 62, 62, 73, 91]],
        conc_vm: [[221, 54, 35, 38, 44, 66], [338, 87, 50, 59, 68, 126]],
    },
    Pauses {
        program: "cky",
        machine: "O2K",
        stop: [[611, 161, 99, 75, 76, 90], [1580, 247, 143, 101, 97, 111]],
        conc_vm: [[321, 89, 55, 48, 53, 68], [639, 148, 81, 73, 68, 85]],
    },
    Pauses {
        program: "cube",
        machine: "O2K",
        stop: [[288, 73, 73, 58, 72, 87], [443, 124, 94, 78, 88, 113]],
        conc_vm: [[251, 69, 54, 62, 59, 95], [380, 96, 75, 100, 100, 164]],
    },
];

/// What the text says of figure 5.2.
pub const FIGURE_5_2: &str = "The thesis: Stop-Soft and Conc-Soft differ little, so what costs is the barrier and not the additional marking. Conc-VM becomes slower with \
    more threads: with 60 on the Enterprise 10000 it takes 24 to 83 % longer than Stop, with 64 on the Origin 2000 21 to 94 %. The software barrier's cost does not grow; Conc-Soft is \
    always faster than Conc-VM in BH-pt, and in Cube with more than 32 or 48 threads. (CKY has no software barrier there.)";
