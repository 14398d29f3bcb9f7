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
