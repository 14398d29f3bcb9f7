//! The numbers of VEE'05 and HAB, as printed.

/// VEE'05, table 1: cycles of the whole program.
pub const TABLE_1: [(&str, f64); 2] = [("threads", 6.636e9), ("CPUs", 6.718e9)];

/// How many objects that program allocates.
pub const TABLE_1_OBJECTS: f64 = 5.913e6;

/// The rows of table 2 (a), which of our counters they are, and what to multiply ours by.
pub const TABLE_2_ROWS: [(&str, &str, f64); 13] = [
    ("collections of the young generation", "collections", 1.0),
    ("time in collections, ms", "stopped_ns", 1e-6),
    ("collections with buffers of threads", "collections_by_threads", 1.0),
    ("collections with buffers of processors", "collections_by_processors", 1.0),
    ("buffers allocated", "labs", 1.0),
    ("MB allocated in buffers", "lab_bytes", 1e-6),
    ("transactions that succeeded", "transactions_succeeded", 1.0),
    ("transactions that failed", "transactions_failed", 1.0),
    ("transactions that were invalid", "transactions_invalid", 1.0),
    ("buffers sidelined", "sidelined", 1.0),
    ("buffers sidelined and unused", "sideline_unused", 1.0),
    ("buffers partly used", "partly_used", 1.0),
    ("MB unused in these", "partly_used_bytes", 1e-6),
];

/// Table 2 (a), the client: for 10 and 50 rooms, each row for threads, processors and flip mode.
pub const TABLE_2: [[[f64; 3]; 13]; 2] = [
    [
        [176.2, 11.1, 13.1],
        [143.5, 12.1, 13.6],
        [176.2, 0.0, 3.1],
        [0.0, 11.1, 10.0],
        [10486.5, 700.3, 663.3],
        [654.7, 33.7, 40.8],
        [0.0, 701.2, 528.3],
        [0.0, 1.7, 1.3],
        [0.0, 1.4, 1.0],
        [0.0, 2.6, 1.5],
        [0.0, 0.0, 0.1],
        [10687.3, 62.4, 182.3],
        [641.1, 0.937, 7.818],
    ],
    [
        [958.0, 55.3, 58.0],
        [3195.7, 278.1, 283.0],
        [958.0, 0.0, 3.0],
        [0.0, 55.3, 55.0],
        [57990.7, 3044.3, 3005.8],
        [3623.7, 180.2, 187.2],
        [0.0, 3044.5, 2881.1],
        [0.0, 1.3, 1.1],
        [0.0, 0.7, 0.3],
        [0.0, 1.5, 2.0],
        [0.0, 0.0, 0.00625],
        [59342.8, 298.6, 423.2],
        [3576.6, 2.792, 9.262],
    ],
];

/// A table of foreign allocations.
pub struct Foreign {
    /// Its number in the paper.
    pub table: &'static str,
    /// Sizes of the level's buffers.
    pub columns: &'static [&'static str],
    /// For each size of the threads' buffers, per cent in each column.
    pub rows: &'static [(&'static str, &'static [f64])],
}

/// HAB, table I: buffers of packages.
pub const TABLE_I: Foreign = Foreign {
    table: "I",
    columns: &["4 MB", "8 MB", "16 MB", "32 MB", "64 MB"],
    rows: &[
        ("none", &[0.32, 0.33, 0.51, 0.94, 1.93]),
        ("1 KiB", &[0.11, 0.06, 0.09, 0.05, 0.15]),
        ("4 KiB", &[0.11, 0.06, 0.06, 0.06, 0.19]),
        ("8 KiB", &[0.13, 0.10, 0.08, 0.10, 0.29]),
        ("16 KiB", &[0.10, 0.08, 0.11, 0.08, 0.12]),
        ("32 KiB", &[0.11, 0.08, 0.08, 0.11, 0.30]),
        ("64 KiB", &[0.22, 0.15, 0.16, 0.29, 0.45]),
        ("128 KiB", &[0.52, 0.47, 0.63, 1.31, 2.60]),
        ("growing", &[0.55, 0.47, 0.64, 1.10, 2.23]),
    ],
};

/// HAB, table II: buffers of cores.
pub const TABLE_II: Foreign = Foreign {
    table: "II",
    columns: &["512 KB", "1 MB", "8 MB", "16 MB"],
    rows: &[
        ("1 KiB", &[0.00, 0.01, 0.05, 0.07]),
        ("4 KiB", &[0.01, 0.01, 0.06, 0.15]),
        ("16 KiB", &[0.01, 0.02, 0.07, 0.13]),
        ("64 KiB", &[0.03, 0.03, 0.10, 0.17]),
        ("128 KiB", &[0.06, 0.05, 0.15, 0.26]),
        ("growing", &[f64::NAN, f64::NAN, 1.42, 2.81]),
    ],
};
