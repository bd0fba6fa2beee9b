// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Readers of traces: every format, and everything that can be wrong with a file.

use flate2::{Compression, write::GzEncoder};
use proptest::prelude::*;
use std::io::{BufReader, Cursor, Read, Write};
use tidegate_units::Nanos;
use tidegate_workload::Rng;
use tidegate_workload::readers::{
    COUNT_MAX, Entry, Format, LINE_MAX, OnBad, Packing, Skipped, TimeUnit, TraceError, What,
    discover, guess, open, spread, unpacked,
};

const SECONDS: Format = Format::Times { unit: TimeUnit::Seconds };
const COUNTS: Format = Format::Counts { period: Nanos::SECOND };
const LOG: Format = Format::Log { took: None };
const ROWS: Format = Format::Csv { period: Nanos::from_secs(60) };

struct Outcome {
    entries: Vec<Entry>,
    error: Option<TraceError>,
    skipped: Skipped,
}

fn read(format: Format, text: &[u8], on_bad: OnBad) -> Outcome {
    let mut reader = open(format, text, on_bad);
    let (mut entries, mut error) = (Vec::new(), None);
    for item in reader.by_ref() {
        assert!(error.is_none(), "nothing follows an error");
        match item {
            Ok(entry) => entries.push(entry),
            Err(e) => error = Some(e),
        }
    }
    Outcome { entries, error, skipped: reader.skipped().clone() }
}

fn sound(format: Format, text: &str) -> Vec<Entry> {
    let read = read(format, text.as_bytes(), OnBad::Fail);
    assert_eq!(read.error, None);
    read.entries
}

fn millis(entries: &[Entry]) -> Vec<u64> {
    entries.iter().map(|e| e.at.0 / 1_000_000).collect()
}

fn counts(entries: &[Entry]) -> Vec<u64> {
    entries.iter().map(|e| e.count).collect()
}

#[test]
fn counts_per_period_take_one_line_a_period() {
    let entries = sound(Format::Counts { period: Nanos::from_secs(60) }, "3\n0\n 12 \r\n94.5\n");
    assert_eq!(counts(&entries), [3, 0, 12, 95]);
    assert_eq!(millis(&entries), [0, 60_000, 120_000, 180_000]);
    assert!(entries.iter().all(|e| e.lasts == Nanos::from_secs(60)));
    assert_eq!(entries[3].line, 4);
}

#[test]
fn a_count_that_cannot_be_read_still_takes_its_period() {
    let read = read(COUNTS, b"x\n5\n\n7\n", OnBad::Skip);
    assert_eq!(millis(&read.entries), [1000, 3000]);
    assert_eq!((read.skipped.count, read.skipped.total()), (2, 2));
}

#[test]
fn times_are_numbers_or_dates() {
    assert_eq!(millis(&sound(SECONDS, "100.5\n100.75\n\n102\n")), [0, 250, 1500]);
    let unit = TimeUnit::Micros;
    assert_eq!(millis(&sound(Format::Times { unit }, "1000\n3500\n")), [0, 2]);
    let dates = "2026-01-31T23:59:59Z\n2026-02-01 00:00:00.25\n\"2026-02-01T01:00:01+01:00\"\n";
    assert_eq!(millis(&sound(SECONDS, dates)), [0, 1250, 2000]);
}

const COMMON: &str = "\
10.0.0.1 - - [10/Oct/2025:13:55:36 -0700] \"GET /a HTTP/1.1\" 200 2326
host.example:80 10.0.0.2 - bob [10/Oct/2025:22:55:37 +0200] \"POST /\\\"b\\\" HTTP/1.1\" 503 -
2001:db8::1 - - [10/Oct/2025:13:55:39 -0700] \"-\" 408 0
";

const COMBINED: &str = "\
10.0.0.1 - - [10/Oct/2025:13:55:36 -0700] \"GET / HTTP/1.1\" 200 9 \"https://example.org/[1]\" \"a \\\"b\\\"\" 0.125
10.0.0.1 - - [10/Oct/2025:13:55:36 -0700] \"GET / HTTP/1.1\" 304 0 \"-\" \"a\" rt=12.000
";

#[test]
fn access_logs_of_apache_and_nginx_are_read() {
    let entries = sound(LOG, COMMON);
    assert_eq!(millis(&entries), [0, 1000, 3000]);
    let status: Vec<Option<u16>> = entries.iter().map(|e| e.status).collect();
    assert_eq!(status, [Some(200), Some(503), Some(408)]);
    let clients: Vec<String> =
        entries.iter().flat_map(|e| e.client).map(|c| c.to_string()).collect();
    assert_eq!(clients, ["10.0.0.1", "10.0.0.2", "2001:db8::1"]);
    let entries = sound(Format::Log { took: Some(TimeUnit::Seconds) }, COMBINED);
    assert_eq!(entries[0].took, Some(Nanos::from_millis(125)));
    assert_eq!(entries[1].took, Some(Nanos::from_secs(12)));
    let micros = "a.host - - [10/Oct/2025:13:55:36 -0700] \"GET / HTTP/1.1\" 200 9 1500\n";
    let entries = sound(Format::Log { took: Some(TimeUnit::Micros) }, micros);
    assert_eq!((entries[0].took, entries[0].client), (Some(Nanos::from_micros(1500)), None));
}

#[test]
fn rows_are_counts_or_requests_with_their_cost() {
    let rows = "period_utc,count\n2025-07-07 15:00:00,20348\n2025-07-07 15:01:00,94.0\n";
    let entries = sound(ROWS, rows);
    assert_eq!(counts(&entries), [20_348, 94]);
    assert_eq!((entries[1].at, entries[1].lasts), (Nanos::from_secs(60), Nanos::from_secs(60)));
    assert_eq!(entries[0].cost, None);
    let tokens =
        "TIMESTAMP,In,Out\n2025-11-16 18:17:03.9799600,4808,10\n2025-11-16 18:17:04.98,1,8";
    let entries = sound(ROWS, tokens);
    assert_eq!(counts(&entries), [1, 1]);
    assert_eq!(entries.iter().map(|e| e.cost).collect::<Vec<_>>(), [Some(4818), Some(9)]);
    assert_eq!((entries[1].at, entries[1].lasts), (Nanos(1_000_040_000), Nanos::ZERO));
    // Without a header two columns are a count.
    assert_eq!(counts(&sound(ROWS, "10,3\n70,4\n")), [3, 4]);
}

#[test]
fn every_kind_of_bad_line_is_an_error_with_its_number_or_is_counted() {
    let long = "1".repeat(LINE_MAX + 1);
    let quoted = |rest: &str| format!("h - - [10/Oct/2025:13:55:36 -0700] {rest}");
    for (format, bad, message) in [
        (COUNTS, "many".to_owned(), "line 2: \"many\" is not a count from 0 to 1000000000"),
        (COUNTS, "-1".to_owned(), "line 2: \"-1\" is not a count"),
        (COUNTS, (COUNT_MAX + 1).to_string(), "line 2: \"1000000001\" is not a count"),
        (COUNTS, String::new(), "line 2: \"\" is not a count"),
        (COUNTS, long, "line 2: longer than 65536 bytes"),
        (SECONDS, "soon".to_owned(), "line 2: no time can be read from \"soon\""),
        (SECONDS, "0.5".to_owned(), "line 2: time goes back by 500.0 ms"),
        (LOG, "garbage".to_owned(), "line 2: no time can be read from \"garbage\""),
        (LOG, quoted("GET / 200"), "line 2: no request can be read from \"GET / 200\""),
        (LOG, quoted("\"GET /"), "line 2: no request can be read from"),
        (LOG, quoted("\"GET /\" 20x 1"), "line 2: no status can be read from \"20x 1\""),
        (ROWS, "2025-01-01 00:01:00".to_owned(), "line 2: no count can be read from"),
        (ROWS, "2025-02-30 00:01:00,4".to_owned(), "line 2: no time can be read from"),
        (ROWS, "2025-01-01 00:01:00,4x".to_owned(), "line 2: \"4x\" is not a count"),
        (ROWS, "2024-12-31 23:59:00,4".to_owned(), "line 2: time goes back by 60.00 s"),
    ] {
        let (good, later) = match format {
            Format::Counts { .. } | Format::Times { .. } => ("1".to_owned(), "2".to_owned()),
            Format::Log { .. } => (quoted("\"GET /\" 200 5"), quoted("\"GET /\" 200 6")),
            Format::Csv { .. } => {
                ("2025-01-01 00:00:00,1".to_owned(), "2025-01-01 00:02:00,2".to_owned())
            }
        };
        let text = format!("{good}\n{bad}\n{later}\n");
        let failed = read(format, text.as_bytes(), OnBad::Fail);
        let error = failed.error.expect("an error").to_string();
        assert!(error.starts_with(message), "{error:?} for {message:?}");
        assert_eq!(failed.entries.len(), 1, "what came before is handed out: {message}");
        let skipped = read(format, text.as_bytes(), OnBad::Skip);
        assert_eq!(skipped.error, None, "{message}");
        assert_eq!((skipped.entries.len(), skipped.skipped.total()), (2, 1), "{message}");
        let first = skipped.skipped.first.expect("the first that was skipped");
        assert_eq!(first.to_string(), error);
    }
}

#[test]
fn what_was_skipped_is_told_by_reason() {
    let text = "10\nx\n5\n11\ny\n\n4\n";
    let skipped = read(SECONDS, text.as_bytes(), OnBad::Skip).skipped;
    assert_eq!((skipped.time, skipped.back, skipped.total()), (2, 2, 4));
    assert_eq!(
        skipped.to_string(),
        "4 skipped: 2 no time, 2 time going back; the first is line 2: no time can be read from \"x\""
    );
}

#[test]
fn a_line_of_the_longest_length_is_read_and_one_more_byte_is_too_much() {
    let line = |length: usize| format!("{}\n1\n", "0".repeat(length));
    for (length, entries) in [(LINE_MAX, 2), (LINE_MAX + 1, 1), (3 * LINE_MAX, 1)] {
        // A buffer of seven bytes: pieces of lines come in any size.
        let text = BufReader::with_capacity(7, Cursor::new(line(length).into_bytes()));
        let mut reader = open(COUNTS, text, OnBad::Skip);
        assert_eq!(reader.by_ref().filter(Result::is_ok).count(), entries, "{length}");
        assert_eq!(reader.skipped().too_long, 2 - entries as u64);
        assert_eq!(reader.lines(), 2);
    }
}

#[test]
fn a_file_without_anything_usable_is_an_error_with_both_options() {
    for on_bad in [OnBad::Fail, OnBad::Skip] {
        for format in [COUNTS, SECONDS, LOG, ROWS] {
            let error = read(format, b"", on_bad).error.expect("an error");
            assert_eq!(error.to_string(), "the file is empty");
        }
        let error = read(ROWS, b"time,count\n", on_bad).error.expect("an error");
        assert_eq!(error.to_string(), "no line of the file could be used (0 skipped as bad)");
        let error = read(LOG, b"\n\n", on_bad).error.expect("an error");
        assert_eq!(error.what, What::NothingUsable { skipped: 0 });
    }
    let error = read(LOG, b"a\nb\nc\n", OnBad::Skip).error.expect("an error");
    assert_eq!(error.to_string(), "no line of the file could be used (3 skipped as bad)");
}

#[test]
fn lines_within_the_slack_are_put_in_order_and_later_ones_are_not() {
    let text = "10\n13\n11\n12\n20\n14\n16\n";
    let mut reader = open(SECONDS, text.as_bytes(), OnBad::Skip).with_slack(Nanos::from_secs(5));
    let entries: Vec<Entry> = reader.by_ref().map_while(Result::ok).collect();
    assert_eq!(millis(&entries), [0, 1000, 2000, 3000, 6000, 10_000]);
    assert_eq!(entries.iter().map(|e| e.line).collect::<Vec<_>>(), [1, 3, 4, 2, 7, 5]);
    let first = reader.skipped().first.clone().expect("14 after 20");
    assert_eq!((first.line, first.what), (6, What::Back(Nanos::from_secs(6))));
    // An earlier time than the first line's is the beginning.
    let text = "10\n8\n11\n30\n";
    let reader = open(SECONDS, text.as_bytes(), OnBad::Fail).with_slack(Nanos::from_secs(5));
    let entries: Vec<Entry> = reader.map_while(Result::ok).collect();
    assert_eq!(millis(&entries), [0, 2000, 3000, 22_000]);
}

/// One wrong date ahead does not make all that follow go back.
#[test]
fn a_date_far_ahead_is_one_bad_line() {
    let text = "1000\n4102444800\n1001\n1002\n";
    let error = read(SECONDS, text.as_bytes(), OnBad::Fail).error.expect("a jump of a century");
    assert!(matches!(error.what, What::Ahead(_)) && error.line == 2, "{error}");
    let outcome = read(SECONDS, text.as_bytes(), OnBad::Skip);
    assert_eq!((outcome.entries.len(), outcome.skipped.ahead), (3, 1));
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(text).expect("memory takes all");
    encoder.finish().expect("memory takes all")
}

/// 2000 lines: i mod 7 for i from 1, made by `xz -9 --check=crc32`.
const XZ: &[u8] = &[
    0xfd, 0x37, 0x7a, 0x58, 0x5a, 0x00, 0x00, 0x01, 0x69, 0x22, 0xde, 0x36, 0x02, 0x00, 0x21, 0x01,
    0x1c, 0x00, 0x00, 0x00, 0x10, 0xcf, 0x58, 0xcc, 0xe0, 0x0f, 0x9f, 0x00, 0x28, 0x5d, 0x00, 0x18,
    0x82, 0x82, 0x8f, 0x22, 0x4e, 0xf8, 0xa6, 0x55, 0xf7, 0xf0, 0x99, 0xa4, 0x87, 0x05, 0xc0, 0x04,
    0x77, 0x9a, 0xd6, 0xe9, 0xb0, 0xe6, 0x1f, 0xb2, 0x2c, 0x1a, 0x5a, 0x2e, 0x28, 0x6e, 0xdf, 0xca,
    0x5b, 0x05, 0x5e, 0xd7, 0x16, 0x55, 0x00, 0x00, 0x8f, 0x20, 0x30, 0xdc, 0x00, 0x01, 0x40, 0xa0,
    0x1f, 0x00, 0x00, 0x00, 0xee, 0x06, 0x50, 0xb4, 0x3e, 0x30, 0x0d, 0x8b, 0x02, 0x00, 0x00, 0x00,
    0x00, 0x01, 0x59, 0x5a,
];

fn all(bytes: &[u8]) -> (Packing, Vec<u8>, Option<String>) {
    let (mut text, packing) = unpacked(bytes).expect("the first bytes are there");
    let mut out = Vec::new();
    let error = text.read_to_end(&mut out).err().map(|e| e.to_string());
    (packing, out, error)
}

#[test]
fn compressed_files_are_told_by_their_first_bytes() {
    let lines: String = (1..=2000).map(|i| format!("{}\n", i % 7)).collect();
    assert_eq!(all(b"1\n2\n"), (Packing::None, b"1\n2\n".to_vec(), None));
    assert_eq!(all(b""), (Packing::None, Vec::new(), None));
    assert_eq!(all(b"\x1f"), (Packing::None, b"\x1f".to_vec(), None));
    let mut members = gzip(b"1\n");
    members.extend(gzip(b"2\n"));
    assert_eq!(all(&members), (Packing::Gzip, b"1\n2\n".to_vec(), None));
    assert_eq!(all(XZ), (Packing::Xz, lines.into_bytes(), None));
}

#[test]
fn a_compressed_file_that_is_cut_off_says_how_far_it_got_wherever_it_is_cut() {
    let lines: String = (0..30_000).map(|i| format!("{}\n", i * 7 % 1000)).collect();
    let whole = gzip(lines.as_bytes());
    for (packed, cuts) in [
        (whole.as_slice(), vec![10, 11, 200, whole.len() / 2, whole.len() - 9, whole.len() - 1]),
        (XZ, (12..XZ.len()).step_by(5).collect()),
    ] {
        for cut in cuts {
            for on_bad in [OnBad::Fail, OnBad::Skip] {
                let found = discover(&packed[..cut]).expect("the first bytes are there");
                let mut reader = open(COUNTS, found.text, on_bad);
                let read = reader.by_ref().take_while(Result::is_ok).count() as u64;
                let mut reader = open(COUNTS, unpacked(&packed[..cut]).expect("there").0, on_bad);
                let error = reader.find_map(Result::err).expect("it is cut off");
                assert_eq!(error.line, read, "cut at {cut}: {error}");
                assert!(matches!(error.what, What::Cut(_)), "cut at {cut}: {error}");
                assert!(error.to_string().contains("is cut off here, after "), "{error}");
            }
        }
    }
}

#[test]
fn a_compressed_file_that_is_damaged_is_an_error() {
    let mut packed = gzip("1\n".repeat(5000).as_bytes());
    let end = packed.len();
    packed[end - 6] ^= 0xff;
    let found = discover(packed.as_slice()).expect("the first bytes are there");
    let error = open(COUNTS, found.text, OnBad::Skip).find_map(Result::err).expect("an error");
    assert!(matches!(error.what, What::Io(..)), "{error}");
    assert!(error.to_string().contains("cannot be read on after "), "{error}");
}

#[test]
fn a_stream_that_is_interrupted_is_read_on_and_one_that_fails_is_an_error() {
    struct Shaky(u32, std::io::ErrorKind);
    impl Read for Shaky {
        fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
            self.0 += 1;
            match self.0 {
                1 | 3 => {
                    buffer[..4].copy_from_slice(b"1\n2\n");
                    Ok(4)
                }
                2 => Err(self.1.into()),
                _ => Ok(0),
            }
        }
    }
    let count = |kind| {
        let mut reader = open(COUNTS, BufReader::new(Shaky(0, kind)), OnBad::Fail);
        let good = reader.by_ref().take_while(Result::is_ok).count();
        (good, reader.lines())
    };
    assert_eq!(count(std::io::ErrorKind::Interrupted), (4, 4));
    assert_eq!(count(std::io::ErrorKind::PermissionDenied), (2, 2));
}

#[test]
fn the_format_is_guessed_from_the_beginning() {
    let second = |took| Some(Format::Log { took });
    for (text, format) in [
        ("12\n0\n3\n", Some(COUNTS)),
        ("0.5\n1.25\n", Some(SECONDS)),
        ("1700000000\n1700000001\n", Some(SECONDS)),
        ("1700000000123\n", Some(Format::Times { unit: TimeUnit::Millis })),
        ("1700000000123456\n", Some(Format::Times { unit: TimeUnit::Micros })),
        ("2026-01-31T23:59:59Z\n", Some(SECONDS)),
        (COMMON, second(None)),
        (COMBINED, second(Some(TimeUnit::Seconds))),
        ("# a comment\n10.0.0.1 - - [10/Oct/2025:13:55:36 -0700] \"GET /\" 200 5\n", second(None)),
        ("period,count\n2025-07-07 15:00:00,1\n2025-07-07 15:01:00,2\n", Some(ROWS)),
        (
            "t,a,b\n2025-07-07 15:00:00,1,2\n2025-07-07 15:01:00,2,3\n",
            Some(Format::Csv { period: Nanos::ZERO }),
        ),
        ("", None),
        ("garbage\nmore, garbage\n", None),
        ("\u{0}\u{1}\u{2}", None),
    ] {
        assert_eq!(guess(text.as_bytes()), format, "{text:?}");
        // A byte order mark changes nothing, compression neither.
        let marked = format!("\u{feff}{text}");
        let found = discover(Cursor::new(gzip(marked.as_bytes()))).expect("memory");
        assert_eq!((found.packing, found.format), (Packing::Gzip, format), "{text:?}");
        let mut again = String::new();
        let mut text_again = found.text;
        text_again.read_to_string(&mut again).expect("text");
        assert_eq!(again, marked, "the text is whole");
    }
}

#[test]
fn entries_become_arrivals_in_order_and_as_many_as_they_count() {
    let text = "2025-01-01 00:00:00,3\n2025-01-01 00:01:00,0\n2025-01-01 00:02:00,200000\n";
    let arrivals = |seed| -> Vec<Nanos> {
        let reader = open(ROWS, text.as_bytes(), OnBad::Fail);
        spread(reader, Rng::new(seed, 0)).map(|t| t.expect("sound")).collect()
    };
    let times = arrivals(1);
    assert_eq!(times.len(), 200_003);
    assert!(times.windows(2).all(|w| w[0] <= w[1]));
    assert_eq!(times.iter().filter(|t| t.0 < 60_000_000_000).count(), 3);
    assert!(times[3].0 >= 120_000_000_000 && times[200_002].0 <= 180_000_000_000);
    // Uniform also where a count is too large to be sorted: a quarter in each quarter.
    for quarter in 0..4 {
        let from = 120_000_000_000 + quarter * 15_000_000_000;
        let in_it = times.iter().filter(|t| (from..from + 15_000_000_000).contains(&t.0)).count();
        // Standard deviation: √(200,000 · 3/16) = 194.
        assert!(in_it.abs_diff(50_000) < 800, "{in_it} in quarter {quarter}");
    }
    assert_eq!(times, arrivals(1));
    assert_ne!(times, arrivals(2));
    let log = open(LOG, COMMON.as_bytes(), OnBad::Fail);
    let times: Vec<Nanos> = spread(log, Rng::new(1, 0)).map(|t| t.expect("sound")).collect();
    assert_eq!(times, [0, 1, 3].map(Nanos::from_secs));
    let bad = open(COUNTS, &b"2\nx\n"[..], OnBad::Fail);
    let items: Vec<bool> = spread(bad, Rng::new(1, 0)).map(|t| t.is_ok()).collect();
    assert_eq!(items, [true, true, false], "errors are passed on");
}

fn formats() -> impl Strategy<Value = Format> {
    let unit = prop_oneof![Just(TimeUnit::Seconds), Just(TimeUnit::Millis), Just(TimeUnit::Micros)];
    let period = any::<u64>().prop_map(Nanos);
    prop_oneof![
        period.clone().prop_map(|period| Format::Counts { period }),
        unit.clone().prop_map(|unit| Format::Times { unit }),
        proptest::option::of(unit).prop_map(|took| Format::Log { took }),
        period.prop_map(|period| Format::Csv { period }),
    ]
}

/// Bytes that come close to what the formats hold, more often than random ones would.
fn texts() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        "[0-9]{1,20}".prop_map(String::into_bytes),
        "[0-9.,:\\[\\]\"\\\\+ TZ/-]{0,30}".prop_map(String::into_bytes),
        Just(b"[10/Oct/2025:13:55:36 -0700] \"GET / HTTP/1.1\" 200 5 0.5".to_vec()),
        Just(b"2025-12-31 23:59:60.999999999".to_vec()),
        Just(b"2261-12-31 23:59:59,".to_vec()),
        Just(b"\n".to_vec()),
        Just(b"\r\n".to_vec()),
        Just(b"time,count\n".to_vec()),
        Just(b"\x1f\x8b\x08\x00".to_vec()),
        Just(b"\xfd7zXZ\x00\x00\x01".to_vec()),
        proptest::collection::vec(any::<u8>(), 0..40),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn arbitrary_bytes_never_panic_and_times_never_fall(
        text in texts(), format in formats(), skip in any::<bool>(), slack in 0_u64..1 << 40,
    ) {
        let on_bad = if skip { OnBad::Skip } else { OnBad::Fail };
        let found = discover(text.as_slice()).expect("memory can be read");
        let format = found.format.unwrap_or(format);
        let mut reader = open(format, found.text, on_bad).with_slack(Nanos(slack));
        let (mut latest, mut used, mut errors, mut last) = (Nanos::ZERO, 0, 0, 0);
        for item in reader.by_ref() {
            prop_assert_eq!(errors, 0, "nothing follows an error");
            match item {
                Ok(entry) => {
                    prop_assert!(entry.at >= latest && entry.count <= COUNT_MAX);
                    (latest, used) = (entry.at, used + 1);
                }
                Err(error) => {
                    prop_assert!(error.to_string().len() < 400);
                    (errors, last) = (errors + 1, error.line);
                }
            }
        }
        prop_assert!(last <= reader.lines());
        prop_assert!(used + reader.skipped().total() <= reader.lines());
        prop_assert!(used > 0 || errors == 1, "a file that gives nothing is an error");
        prop_assert!(reader.next().is_none());
    }

    #[test]
    fn what_was_written_is_read_again(
        counts in proptest::collection::vec(0..=COUNT_MAX, 1..200), capacity in 1_usize..64,
    ) {
        let text: String = counts.iter().map(|c| format!("{c}\n")).collect();
        let packed = gzip(text.as_bytes());
        let (text, _) = unpacked(BufReader::with_capacity(capacity, packed.as_slice()))
            .expect("memory can be read");
        let read: Vec<u64> =
            open(COUNTS, text, OnBad::Fail).map(|e| e.expect("sound").count).collect();
        prop_assert_eq!(read, counts);
    }
}
