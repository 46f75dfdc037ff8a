//! Places on the globe as scores: geohashes of 52 bits, distances, and the cells that a search looks at.
//!
//! A geohash halves the range of longitudes and that of latitudes in turn, 26 times each, and interleaves the
//! bits: longitude first. Places with equal leading bits lie in one cell, and so in one range of scores.
//! Everything is computed in the order of Redis's steps, so that results agree to the last digit.

/// The number of times that a score's geohash halves each of the two ranges, of longitude and of latitude.
pub(super) const STEPS_MAX: u32 = 26;
const EARTH_RADIUS_METERS: f64 = 6_372_797.560_856;
/// Half the length of the equator in the Mercator projection, in metres.
const MERCATOR_METERS_MAX: f64 = 20_037_726.37;
pub(super) const LONGITUDE_MAX: f64 = 180.0;
/// The largest latitude of the square Mercator projection, in degrees.
pub(super) const LATITUDE_MAX: f64 = 85.051_128_78;
/// The columns and rows by which a cell's neighbours differ from it, in the order in which Redis searches
/// them; the cell (rectangle of the grid) itself comes first.
const NEIGHBORS: [(i32, i32); 9] =
    [(0, 0), (0, 1), (0, -1), (1, 0), (-1, 0), (1, 1), (-1, 1), (1, -1), (-1, -1)];
/// The digits of the textual form of a geohash.
const DIGITS: &[u8; 32] = b"0123456789bcdefghjkmnpqrstuvwxyz";

/// A place on the globe: longitude and latitude in degrees.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Place {
    pub(super) longitude: f64,
    pub(super) latitude: f64,
}

/// A cell (rectangle) of the grid that results from halving the range of longitudes and that of latitudes
/// `steps` times each: its column `x`, counted from the west, and its row `y`, counted from the south.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cell {
    x: u32,
    y: u32,
    steps: u32,
}

/// The edges of a cell of the grid of geohashes, in degrees.
struct Edges {
    west: f64,
    east: f64,
    south: f64,
    north: f64,
}

impl Place {
    pub(super) fn is_valid(self) -> bool {
        self.longitude.abs() <= LONGITUDE_MAX && self.latitude.abs() <= LATITUDE_MAX
    }

    /// Returns the place's geohash (52 bits) as a score for a sorted set.
    pub(super) fn score(self) -> f64 {
        Cell::of(self, STEPS_MAX, LATITUDE_MAX).bits() as f64
    }

    /// Returns the place that the score of a sorted set's member means: the center of its geohash's cell
    /// (rectangle of the grid).
    pub(super) fn of_score(score: f64) -> Self {
        let bits = score as u64;
        let cell = Cell { x: gathered(bits >> 1), y: gathered(bits), steps: STEPS_MAX };
        let edges = cell.edges();
        Self {
            longitude: f64::midpoint(edges.west, edges.east).clamp(-LONGITUDE_MAX, LONGITUDE_MAX),
            latitude: f64::midpoint(edges.south, edges.north).clamp(-LATITUDE_MAX, LATITUDE_MAX),
        }
    }

    /// Returns the standard geohash of the place as text of 11 digits, in which latitudes go up to the poles.
    pub(super) fn text(self) -> [u8; 11] {
        let bits = Cell::of(self, STEPS_MAX, 90.0).bits();
        let mut text = [b'0'; 11];
        // Ten digits take 50 of 52 bits; the last one is always 0.
        for (place, digit) in text[..10].iter_mut().enumerate() {
            *digit = DIGITS[(bits >> (52 - (place + 1) * 5)) as usize & 0x1f];
        }
        text
    }

    /// Returns the distance between two places along the surface, in metres, by the haversine formula.
    pub(super) fn distance(self, other: Self) -> f64 {
        let (longitude, latitude) = (self.longitude.to_radians(), self.latitude.to_radians());
        let (other_longitude, other_latitude) = (other.longitude.to_radians(), other.latitude.to_radians());
        let across = ((other_longitude - longitude) / 2.0).sin();
        if across == 0.0 {
            return latitudes_apart(self.latitude, other.latitude);
        }
        let along = ((other_latitude - latitude) / 2.0).sin();
        let share = along * along + latitude.cos() * other_latitude.cos() * across * across;
        // Between antipodes, rounding can take the root beyond 1, of which there is no arcsine.
        2.0 * EARTH_RADIUS_METERS * share.sqrt().min(1.0).asin()
    }
}

fn latitudes_apart(one: f64, other: f64) -> f64 {
    EARTH_RADIUS_METERS * (other.to_radians() - one.to_radians()).abs()
}

impl Cell {
    fn of(place: Place, steps: u32, latitude_max: f64) -> Self {
        let grid = f64::from(1_u32 << steps);
        let x = (place.longitude + LONGITUDE_MAX) / (2.0 * LONGITUDE_MAX) * grid;
        let y = (place.latitude + latitude_max) / (2.0 * latitude_max) * grid;
        Self { x: x as u32, y: y as u32, steps }
    }

    fn bits(self) -> u64 {
        spread(self.x) << 1 | spread(self.y)
    }

    fn edges(self) -> Edges {
        let grid = (1_u64 << self.steps) as f64;
        let at = |index: u64, most: f64| -most + index as f64 / grid * (2.0 * most);
        let (x, y) = (u64::from(self.x), u64::from(self.y));
        Edges {
            west: at(x, LONGITUDE_MAX),
            east: at(x + 1, LONGITUDE_MAX),
            south: at(y, LATITUDE_MAX),
            north: at(y + 1, LATITUDE_MAX),
        }
    }

    /// Returns the cell (rectangle of the grid) that is `columns` columns to the east and `rows` rows to the
    /// north of this one. Beyond an edge of the grid, the count goes on at the opposite edge.
    fn beside(self, columns: i32, rows: i32) -> Self {
        let mask = (1_u32 << self.steps) - 1;
        Self {
            x: self.x.wrapping_add_signed(columns) & mask,
            y: self.y.wrapping_add_signed(rows) & mask,
            steps: self.steps,
        }
    }

    /// Returns the range of sorted-set scores that encode places in this cell (rectangle of the grid): the
    /// first score, and the first beyond the last.
    fn scores(self) -> (f64, f64) {
        let shift = 2 * (STEPS_MAX - self.steps);
        ((self.bits() << shift) as f64, ((self.bits() + 1) << shift) as f64)
    }
}

/// Returns the number whose bits at even positions are the bits of `number`, with zeros between them.
fn spread(number: u32) -> u64 {
    let mut bits = u64::from(number);
    for (shift, mask) in [
        (16, 0x0000_ffff_0000_ffff),
        (8, 0x00ff_00ff_00ff_00ff),
        (4, 0x0f0f_0f0f_0f0f_0f0f),
        (2, 0x3333_3333_3333_3333),
        (1, 0x5555_5555_5555_5555),
    ] {
        bits = (bits | bits << shift) & mask;
    }
    bits
}

/// Returns the bits at the even positions of a number: the inverse of [`spread`].
fn gathered(bits: u64) -> u32 {
    let mut bits = bits & 0x5555_5555_5555_5555;
    for (shift, mask) in [
        (1, 0x3333_3333_3333_3333),
        (2, 0x0f0f_0f0f_0f0f_0f0f),
        (4, 0x00ff_00ff_00ff_00ff),
        (8, 0x0000_ffff_0000_ffff),
        (16, 0x0000_0000_ffff_ffff),
    ] {
        bits = (bits | bits >> shift) & mask;
    }
    bits as u32
}

/// The outline of a search area, in metres.
#[derive(Clone, Copy, Debug)]
pub(super) enum Outline {
    Circle { radius: f64 },
    Box { width: f64, height: f64 },
}

/// An area in which members of a sorted set are searched by their places: its center and outline.
#[derive(Clone, Copy, Debug)]
pub(super) struct Area {
    pub(super) center: Place,
    pub(super) outline: Outline,
}

impl Area {
    /// Returns the distance of a place from the area's center, in metres; `None` if the place is outside the
    /// area.
    pub(super) fn distance(&self, place: Place) -> Option<f64> {
        match self.outline {
            Outline::Circle { radius } => {
                Some(self.center.distance(place)).filter(|distance| *distance <= radius)
            }
            Outline::Box { width, height } => {
                if latitudes_apart(place.latitude, self.center.latitude) > height / 2.0 {
                    return None;
                }
                let beside = Place { latitude: place.latitude, ..self.center };
                (place.distance(beside) <= width / 2.0).then(|| self.center.distance(place))
            }
        }
    }

    /// Returns ranges of sorted-set scores that together contain all places in the area, in the order in
    /// which Redis searches them. Each range is its first score and the first score beyond its last.
    pub(super) fn ranges(&self) -> Vec<(f64, f64)> {
        let bounds = self.bounds();
        let mut steps = self.steps();
        let mut cell = Cell::of(self.center, steps, LATITUDE_MAX);
        let too_small = cell.beside(0, 1).edges().north < bounds.north
            || cell.beside(0, -1).edges().south > bounds.south
            || cell.beside(1, 0).edges().east < bounds.east
            || cell.beside(-1, 0).edges().west > bounds.west;
        if steps > 1 && too_small {
            steps -= 1;
            cell = Cell::of(self.center, steps, LATITUDE_MAX);
        }
        let edges = cell.edges();
        let useless = |columns: i32, rows: i32| {
            steps >= 2
                && (rows < 0 && edges.south < bounds.south
                    || rows > 0 && edges.north > bounds.north
                    || columns < 0 && edges.west < bounds.west
                    || columns > 0 && edges.east > bounds.east)
        };
        let wanted = NEIGHBORS.into_iter().filter(|(columns, rows)| !useless(*columns, *rows));
        let mut cells: Vec<Cell> = wanted.map(|(columns, rows)| cell.beside(columns, rows)).collect();
        // On a coarse grid, neighbors in both directions are one cell.
        let mut seen = Vec::new();
        cells.retain(|cell| {
            let new = !seen.contains(cell);
            seen.push(*cell);
            new
        });
        cells.into_iter().map(Cell::scores).collect()
    }

    fn bounds(&self) -> Edges {
        let (width, height) = match self.outline {
            Outline::Circle { radius } => (radius, radius),
            Outline::Box { width, height } => (width / 2.0, height / 2.0),
        };
        let Place { longitude, latitude } = self.center;
        let rows = (height / EARTH_RADIUS_METERS).to_degrees();
        let nearest_pole = if latitude < 0.0 { latitude - rows } else { latitude + rows };
        let columns = (width / EARTH_RADIUS_METERS / nearest_pole.to_radians().cos()).to_degrees();
        Edges {
            west: longitude - columns,
            east: longitude + columns,
            south: latitude - rows,
            north: latitude + rows,
        }
    }

    /// Returns the number of halvings of the globe after which a cell (rectangle of the grid of geohashes) is
    /// still about as large as the searched area, or larger.
    fn steps(&self) -> u32 {
        let mut reach = match self.outline {
            Outline::Circle { radius } => radius,
            Outline::Box { width, height } => (width / 2.0).hypot(height / 2.0),
        };
        if reach == 0.0 {
            return STEPS_MAX;
        }
        let mut steps = 1;
        while reach < MERCATOR_METERS_MAX {
            reach *= 2.0;
            steps += 1;
        }
        // Cells are narrower near the poles.
        let latitude = self.center.latitude.abs();
        let narrower = i32::from(latitude > 66.0) + i32::from(latitude > 80.0);
        (steps - 2 - narrower).clamp(1, STEPS_MAX as i32) as u32
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::values::Random;

    fn anywhere(random: &mut Random) -> Place {
        Place {
            longitude: (random.unit() * 2.0 - 1.0) * LONGITUDE_MAX,
            latitude: (random.unit() * 2.0 - 1.0) * LATITUDE_MAX,
        }
    }

    #[test]
    fn a_score_is_a_place() {
        let palermo = Place { longitude: 13.361_389, latitude: 38.115_556 };
        assert_eq!(palermo.score() as u64, 3_479_099_956_230_698);
        assert_eq!(&palermo.text(), b"sqc8b49rny0");
        let mut random = Random::new(5);
        for _ in 0..1_000 {
            let place = anywhere(&mut random);
            assert!(Place::of_score(place.score()).distance(place) < 1.0, "{place:?}");
        }
    }

    #[test]
    fn antipodes_are_half_the_globe_apart() {
        let mut random = Random::new(7);
        for _ in 0..50_000 {
            let place = anywhere(&mut random);
            let longitude = place.longitude - LONGITUDE_MAX.copysign(place.longitude);
            let distance = place.distance(Place { longitude, latitude: -place.latitude });
            let half = std::f64::consts::PI * EARTH_RADIUS_METERS;
            assert!((distance - half).abs() < 10.0, "{distance} from {place:?}");
        }
    }

    #[test]
    fn every_place_in_an_area_is_in_one_of_its_ranges() {
        let mut random = Random::new(6);
        for _ in 0..2_000 {
            let reach = 10_f64.powf(random.unit() * 6.0);
            let mut center = anywhere(&mut random);
            center.latitude *= 0.9;
            let outline = if random.index(2) == 0 {
                Outline::Circle { radius: reach }
            } else {
                Outline::Box { width: reach, height: reach * 0.5 }
            };
            let area = Area { center, outline };
            let ranges = area.ranges();
            for _ in 0..20 {
                let near = Place {
                    longitude: center.longitude + (random.unit() - 0.5) * reach / 50_000.0,
                    latitude: center.latitude + (random.unit() - 0.5) * reach / 50_000.0,
                };
                if near.is_valid() && area.distance(Place::of_score(near.score())).is_some() {
                    let score = near.score();
                    let found = ranges.iter().any(|(first, end)| *first <= score && score < *end);
                    assert!(found, "{near:?} in {area:?}");
                }
            }
        }
    }
}
