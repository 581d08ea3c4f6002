//! Where there is no terminal, or only a poor one.

use crate::lab::Answer;
use crate::screen::Screen;
use crate::scripts::worked_on;

/// P152: in a pipe, on a terminal that obeys nothing, without colours, without UTF-8: plain text and exit codes;
/// no escape sequence, no sign of our own that the locale has not.
#[test]
fn p152_plain_output_where_there_is_no_terminal() {
    let lab = worked_on(|ws| {
        std::fs::write(ws.join("new\nline\tand tab"), "a\r\nb\r\n").expect("write");
    });
    let odd = lab.at("new\nline\tand tab");
    std::fs::write(odd, "a\nb\n").expect("write");
    let store = lab.store();
    let store = store.to_str().expect("UTF-8");
    let file = lab.dir().join("out");
    for (args, code) in [
        (&["timeline", store][..], 0),
        (&["-c", store, "changes", "m1", "now"], 0),
        (&["-c", store, "diff", "m1", "now"], 0),
        (&["-c", store, "--dry-run", "rewind", "1"], 0),
        (&["-c", store, "rewind", "1"], 3),
        (&["-c", store, "--yes", "rewind", "1", "--files"], 0),
        (&["-c", store, "--yes", "undo"], 0),
        (&["-c", store, "log"], 0),
        (&["-c", store, "ls", "m1"], 0),
        (&["-c", store, "rewind", "99"], 4),
        (&["sandboxes"], 0),
        (&["conversations"], 0),
        (&["space"], 0),
        (&["doctor"], 0),
        (&["--help"], 0),
        (&["rewind", "--help"], 0),
        (&["man"], 0),
        (&[], 2),
        (&[store], 2),
    ] {
        for env in [
            &[("LC_ALL", "C"), ("TERM", "dumb"), ("NO_COLOR", "1")][..],
            &[("LC_ALL", "POSIX"), ("TERM", "xterm-256color")],
            &[("LC_ALL", ""), ("LANG", "de_DE.ISO-8859-1"), ("TERM", "")],
        ] {
            let mut c = lab.command();
            c.args(args).envs(env.iter().copied());
            c.stdout(std::fs::File::create(&file).expect("create"));
            let a = Answer::of(c.output().expect("run"));
            let what = format!("{env:?} {args:?}: {}", a.err);
            assert_eq!(a.code, Some(code), "{what}");
            let mut all = std::fs::read(&file).expect("read");
            assert_eq!(all.is_empty(), code != 0, "{what}");
            all.extend(a.err.bytes());
            let odd: Vec<u8> = all
                .iter()
                .copied()
                .filter(|b| !b.is_ascii() || (b.is_ascii_control() && !matches!(b, b'\n' | b'\t')))
                .collect();
            let odd: Vec<u8> = if args.contains(&"diff") {
                // the content of files is as it is
                odd.into_iter().filter(|b| *b != b'\r').collect()
            } else {
                odd
            };
            assert!(
                odd.is_empty(),
                "{what}: {odd:02x?}\n{}",
                String::from_utf8_lossy(&all)
            );
        }
    }
}

/// P152: the screens on a terminal that obeys nothing refuse with a hint and leave it alone; in a locale without
/// UTF-8 they draw with ASCII alone, and work.
#[test]
fn p152_the_screens_refuse_or_draw_in_ascii() {
    let lab = worked_on(|_| {});
    let store = lab.store();
    let store = store.to_str().expect("UTF-8");
    let mut dumb = Screen::run(&lab, &[store], &[("TERM", "dumb")]);
    assert_eq!(dumb.end(), 2);
    dumb.wait("hint");
    assert!(!dumb.raw().contains(&0x1b), "{:?}", dumb.text());
    for locale in ["C", "POSIX", "fr_FR.ISO-8859-1"] {
        let mut screen = Screen::open(&lab, &[("LC_ALL", locale)]);
        screen.keys("\t");
        screen.keys("r");
        screen.wait("Rewind to");
        screen.keys("\x1b");
        screen.gone("Rewind to");
        screen.keys("?");
        screen.wait("Move");
        screen.keys("\x1b");
        screen.gone("Move");
        let raw = screen.raw();
        let odd: Vec<String> = String::from_utf8_lossy(&raw)
            .chars()
            .filter(|c| !c.is_ascii())
            .map(String::from)
            .collect();
        assert!(odd.is_empty(), "{locale}: {odd:?}\n{}", screen.text());
        assert!(screen.text().contains("--"), "lines: {}", screen.text());
        screen.quit();
    }
    // else with its lines
    for locale in [&[("LC_ALL", "C.UTF-8")][..], &[("LANG", ""), ("LC_ALL", "")]] {
        let screen = Screen::open(&lab, locale);
        assert!(screen.text().contains('─'), "{}", screen.text());
        screen.quit();
    }
}
