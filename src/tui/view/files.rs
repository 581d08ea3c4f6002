//! The files that differ between the two states.

use ratatui::buffer::Buffer;
use ratatui::layout::Rect;
use ratatui::text::{Line, Span};

use super::cells;
use crate::engine::{Change, ChangeKind, FileType, PartKind, What};
use crate::text;
use crate::tui::backend::StateRef;
use crate::tui::keymap::Action;
use crate::tui::layout;
use crate::tui::state::{Open, Pair, Pane, State};
use crate::tui::theme::Role;

/// The pane.
pub fn draw(buf: &mut Buffer, area: Rect, state: &State) {
    if area.is_empty() {
        return;
    }
    let Some(open) = &state.open else { return };
    let focused = state.focus == Pane::Files;
    let load = &open.files.load;
    let shown = if load.slow {
        load.wanted.as_ref()
    } else {
        load.value.as_ref().map(|(p, _)| p)
    };
    let heading = shown.map_or_else(
        || "Files".to_owned(),
        |p| format!("Files  {}", pair_words(open, p)),
    );
    let count = load
        .ready()
        .filter(|_| !load.slow)
        .map_or_else(String::new, |l| match l.len() {
            1 => "1 path".to_owned(),
            n => format!("{n} paths"),
        });
    cells::title(buf, area, &state.theme, &heading, &count, focused);
    let content = layout::content(area);
    let dim = state.theme[Role::Dim];
    if let Some(why) = &open.files.unable {
        let (why, rest) = why.split_once("; ").unwrap_or((why, ""));
        return cells::say(buf, content, dim, &[why, "", rest]);
    }
    if load.slow {
        return cells::put(
            buf,
            cells::line_of(content, 0),
            &Line::styled("  comparing …", dim),
        );
    }
    match &load.value {
        None => {}
        Some((_, Err(failure))) => {
            let hint = failure.hint.clone().unwrap_or_default();
            cells::say(buf, content, state.theme[Role::Bad], &[&failure.message, &hint]);
        }
        Some((_, Ok(list))) if list.is_empty() => {
            let next = format!(
                "{} and {} mark two other states; another message shows its turn.",
                state.keymap.key_of(Action::MarkA),
                state.keymap.key_of(Action::MarkB)
            );
            cells::say(buf, content, dim, &["Nothing differs.", "", &next]);
        }
        Some((_, Ok(list))) => rows(buf, content, state, open, list, focused),
    }
}

fn rows(buf: &mut Buffer, area: Rect, state: &State, open: &Open, list: &[Change], focused: bool) {
    let at = open.files.at;
    for n in 0..usize::from(area.height) {
        let place = at.top + n;
        let Some(change) = list.get(place) else { break };
        let selected = (place == at.selected).then(|| {
            let role = if focused {
                Role::Selected
            } else {
                Role::SelectedDim
            };
            state.theme[role]
        });
        let line = cells::line_of(area, n);
        let (left, right) = change_row(state, change, usize::from(line.width), None);
        cells::row(buf, line, left, right, selected);
    }
}

/// The sign of a change, and its colour.
pub fn sign(kind: ChangeKind) -> (&'static str, Role) {
    match kind {
        ChangeKind::Added => ("+", Role::Added),
        ChangeKind::Modified => ("~", Role::Modified),
        ChangeKind::Deleted => ("-", Role::Deleted),
        ChangeKind::Renamed => (">", Role::Renamed),
        ChangeKind::Type | ChangeKind::Meta => ("*", Role::Other),
    }
}

/// One changed path: sign and name on the left, size or attributes on the right.
pub fn change_row(
    state: &State,
    change: &Change,
    columns: usize,
    tag: Option<(&'static str, Role)>,
) -> (Line<'static>, Line<'static>) {
    let theme = &state.theme;
    let (sign, role) = sign(change.kind);
    let mut right = vec![Span::styled(remark(change), theme[Role::Dim])];
    if let Some((word, role)) = tag {
        right.push(Span::styled(format!("  {word}"), theme[role]));
    }
    right.push(Span::raw(" "));
    let right = Line::from(right);
    let mut left = vec![Span::styled(format!(" {sign} "), theme[role])];
    if change.part != PartKind::Workspace {
        left.push(Span::styled(format!("{}: ", part(change.part)), theme[Role::Dim]));
    }
    let used: usize = left.iter().map(Span::width).sum();
    let room = columns.saturating_sub(used + right.width() + 1);
    let mut name = text::shown_path(&change.path);
    let dir = change.type_b.or(change.type_a) == Some(FileType::Dir);
    if dir && name != "." {
        name.push('/');
    }
    if let Some(from) = &change.from {
        let from = text::shown_path(from);
        let arrow = 3;
        let half = room.saturating_sub(arrow) / 2;
        let name_room = half.max(room.saturating_sub(arrow + cells::width(&from)));
        let name = cells::clip_middle(&name, name_room);
        let from_room = room.saturating_sub(arrow + cells::width(&name));
        left.push(Span::styled(
            cells::clip_middle(&from, from_room),
            theme[Role::Dim],
        ));
        left.push(Span::styled(" → ", theme[Role::Dim]));
        left.push(Span::raw(name));
    } else {
        left.push(Span::raw(cells::clip_middle(&name, room)));
    }
    (Line::from(left), right)
}

fn part(part: PartKind) -> &'static str {
    match part {
        PartKind::Workspace => "workspace",
        PartKind::Container => "container",
        PartKind::DockerVolume => "volume",
        PartKind::Conversation => "conversation",
        PartKind::Docker => "docker",
    }
}

/// How large it is, grew or shrank; or which attributes differ.
fn remark(change: &Change) -> String {
    let attributes: Vec<&str> = change
        .what
        .iter()
        .filter_map(|w| match w {
            What::Content => None,
            What::Mode => Some("mode"),
            What::Owner => Some("owner"),
            What::Xattr => Some("xattr"),
            What::Flags => Some("flags"),
            What::Time => Some("time"),
        })
        .collect();
    let file = |t: Option<FileType>| t == Some(FileType::File);
    match change.kind {
        ChangeKind::Type => format!("{} → {}", file_type(change.type_a), file_type(change.type_b)),
        ChangeKind::Meta => attributes.join(" "),
        ChangeKind::Added if file(change.type_b) => change.size_b.map_or_else(String::new, text::size),
        ChangeKind::Deleted if file(change.type_a) => change.size_a.map_or_else(String::new, text::size),
        ChangeKind::Added => other_type(change.type_b),
        ChangeKind::Deleted => other_type(change.type_a),
        ChangeKind::Modified | ChangeKind::Renamed => match (change.size_a, change.size_b) {
            (Some(a), Some(b)) if a < b => format!("+{}", text::size(b - a)),
            (Some(a), Some(b)) if a > b => format!("-{}", text::size(a - b)),
            _ => String::new(),
        },
    }
}

fn other_type(t: Option<FileType>) -> String {
    match t {
        Some(FileType::Dir) => String::new(),
        t => file_type(t).to_owned(),
    }
}

/// The type of a file in words.
pub fn file_type(t: Option<FileType>) -> &'static str {
    match t {
        None => "nothing",
        Some(FileType::File) => "file",
        Some(FileType::Dir) => "folder",
        Some(FileType::Link) => "link",
        Some(FileType::Fifo) => "pipe",
        Some(FileType::Socket) => "socket",
        Some(FileType::CharDevice) => "character device",
        Some(FileType::BlockDevice) => "block device",
    }
}

/// Two states in words: "message 3", "after message 3", "before 3 → end of 5".
pub fn pair_words(open: &Open, pair: &Pair) -> String {
    let rows = open.rows();
    let place = |id: &str| rows.iter().rposition(|r| r.id == id);
    let number = |id: &str| {
        let row = place(id).map(|i| &rows[i]);
        row.and_then(|r| r.message)
            .map_or_else(|| "this message".to_owned(), |n| format!("message {n}"))
    };
    let next = |a: &str, b: &str| {
        place(a).is_some_and(|i| crate::tui::update::next_before(rows, i).is_some_and(|r| r.id == b))
    };
    let last = |a: &str| place(a).is_some_and(|i| crate::tui::update::next_before(rows, i).is_none());
    match (&pair.a, &pair.b) {
        (StateRef::Before(a), StateRef::End(b)) if a == b => number(a),
        (StateRef::Before(a), StateRef::Before(b)) if next(a, b) => number(a),
        (StateRef::Before(a), StateRef::Now) if last(a) => format!("{} until now", number(a)),
        (StateRef::End(a), StateRef::Before(b)) if next(a, b) => format!("after {}", number(a)),
        (StateRef::End(a), StateRef::Now) if last(a) => format!("after {}", number(a)),
        (a, b) => {
            let words = |s: &StateRef| match s {
                StateRef::Start => "start".to_owned(),
                StateRef::Now => "now".to_owned(),
                StateRef::Before(id) => format!("before {}", number(id)),
                StateRef::End(id) => format!("end of {}", number(id)),
                StateRef::Checkpoint(id) => id.to_string(),
            };
            format!("{} → {}", words(a), words(b))
        }
    }
}
