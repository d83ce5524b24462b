// Writes the tables of src/grammar/text/unicode_data_*.cc: the code points of each property that \p{…} of ECMA-262
// knows, as this Node's own regular expressions know them.
//
//   node tools/make_unicode_properties.mjs src/grammar/text
//
// Behind a colon stand the bases of a property: its row has only the points in which it differs from them. The
// property has the points that an odd number of the row and its bases have.
//
// Code points are a list of ranges. A range is two numbers: its distance from the end of the range before it, and its
// length less one. A number is digits of five bits, the lowest first; all but the last have 32 added. A digit is a
// character of DIGITS.
import { writeFileSync } from "node:fs";

const DIGITS = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";

const CATEGORIES = `Lu Uppercase_Letter,Ll Lowercase_Letter:Lu,Lt Titlecase_Letter,Lm Modifier_Letter,Lo Other_Letter,
Mn Nonspacing_Mark,Mc Spacing_Mark,Me Enclosing_Mark,Nd Decimal_Number digit,Nl Letter_Number,No Other_Number,
Pc Connector_Punctuation,Pd Dash_Punctuation,Ps Open_Punctuation,Pe Close_Punctuation,Pi Initial_Punctuation,
Pf Final_Punctuation,Po Other_Punctuation,Sm Math_Symbol,Sc Currency_Symbol,Sk Modifier_Symbol,So Other_Symbol,
Zs Space_Separator,Zl Line_Separator,Zp Paragraph_Separator,Cc Control cntrl,Cf Format,Cs Surrogate,Co Private_Use,
Cn Unassigned:Any L M N P S Z Cc Cf Cs Co`;

const BINARIES = `ASCII_Hex_Digit AHex,Alphabetic Alpha:ID_Start,Bidi_Control Bidi_C,Bidi_Mirrored Bidi_M,Case_Ignorable CI:Mn Me Lm Sk Cf,
Cased:sc=Latn sc=Grek sc=Geor sc=Vith,Changes_When_Casefolded CWCF:CWL,Changes_When_Casemapped CWCM:Cased,Changes_When_Lowercased CWL:Lu Lt,
Changes_When_NFKC_Casefolded CWKCF:CWCF sc=Arab,Changes_When_Titlecased CWT:CWU Lt,Changes_When_Uppercased CWU:Ll Lt,Dash:Pd,
Default_Ignorable_Code_Point DI,Deprecated Dep,Diacritic Dia,Emoji,Emoji_Component EComp,Emoji_Modifier EMod,
Emoji_Modifier_Base EBase,Emoji_Presentation EPres,Extended_Pictographic ExtPict:Emoji,Extender Ext,Grapheme_Base Gr_Base:Cn Gr_Ext Cf,
Grapheme_Extend Gr_Ext:Mn Me,Hex_Digit Hex,IDS_Binary_Operator IDSB,IDS_Trinary_Operator IDST,ID_Continue IDC:IDS Mn Mc Nd Pc,ID_Start IDS:Lo Lm Nl Cased,
Ideographic Ideo:sc=Hani,Join_Control Join_C,Logical_Order_Exception LOE,Lowercase Lower:Ll,Math:Sm,Noncharacter_Code_Point NChar,
Pattern_Syntax Pat_Syn,Pattern_White_Space Pat_WS,Quotation_Mark QMark,Radical,Regional_Indicator RI,
Sentence_Terminal STerm,Soft_Dotted SD,Terminal_Punctuation Term:STerm,Unified_Ideograph UIdeo,Uppercase Upper:Lu,
Variation_Selector VS,White_Space space:Zs,XID_Continue XIDC:IDC,XID_Start XIDS:IDS`;

const SCRIPTS = `Adlm Adlam,Aghb Caucasian_Albanian,Ahom,Arab Arabic,Armi Imperial_Aramaic,Armn Armenian,Avst Avestan,
Bali Balinese,Bamu Bamum,Bass Bassa_Vah,Batk Batak,Beng Bengali,Berf Beria_Erfe,Bhks Bhaiksuki,Bopo Bopomofo,Brah Brahmi,
Brai Braille,Bugi Buginese,Buhd Buhid,Cakm Chakma,Cans Canadian_Aboriginal,Cari Carian,Cham,Cher Cherokee,
Chrs Chorasmian,Copt Coptic Qaac,Cpmn Cypro_Minoan,Cprt Cypriot,Cyrl Cyrillic,Deva Devanagari,Diak Dives_Akuru,
Dogr Dogra,Dsrt Deseret,Dupl Duployan,Egyp Egyptian_Hieroglyphs,Elba Elbasan,Elym Elymaic,Ethi Ethiopic,Gara Garay,
Geor Georgian,Glag Glagolitic,Gong Gunjala_Gondi,Gonm Masaram_Gondi,Goth Gothic,Gran Grantha,Grek Greek,
Gujr Gujarati,Gukh Gurung_Khema,Guru Gurmukhi,Hang Hangul,Hani Han,Hano Hanunoo,Hatr Hatran,Hebr Hebrew,
Hira Hiragana,Hluw Anatolian_Hieroglyphs,Hmng Pahawh_Hmong,Hmnp Nyiakeng_Puachue_Hmong,Hung Old_Hungarian,
Ital Old_Italic,Java Javanese,Kali Kayah_Li,Kana Katakana,Kawi,Khar Kharoshthi,Khmr Khmer,Khoj Khojki,
Kits Khitan_Small_Script,Knda Kannada,Krai Kirat_Rai,Kthi Kaithi,Lana Tai_Tham,Laoo Lao,Latn Latin,Lepc Lepcha,
Limb Limbu,Lina Linear_A,Linb Linear_B,Lisu,Lyci Lycian,Lydi Lydian,Mahj Mahajani,Maka Makasar,Mand Mandaic,
Mani Manichaean,Marc Marchen,Medf Medefaidrin,Mend Mende_Kikakui,Merc Meroitic_Cursive,Mero Meroitic_Hieroglyphs,
Mlym Malayalam,Modi,Mong Mongolian,Mroo Mro,Mtei Meetei_Mayek,Mult Multani,Mymr Myanmar,Nagm Nag_Mundari,
Nand Nandinagari,Narb Old_North_Arabian,Nbat Nabataean,Newa,Nkoo Nko,Nshu Nushu,Ogam Ogham,Olck Ol_Chiki,Onao Ol_Onal,
Orkh Old_Turkic,Orya Oriya,Osge Osage,Osma Osmanya,Ougr Old_Uyghur,Palm Palmyrene,Pauc Pau_Cin_Hau,Perm Old_Permic,
Phag Phags_Pa,Phli Inscriptional_Pahlavi,Phlp Psalter_Pahlavi,Phnx Phoenician,Plrd Miao,Prti Inscriptional_Parthian,
Rjng Rejang,Rohg Hanifi_Rohingya,Runr Runic,Samr Samaritan,Sarb Old_South_Arabian,Saur Saurashtra,Sgnw SignWriting,
Shaw Shavian,Shrd Sharada,Sidd Siddham,Sidt Sidetic,Sind Khudawadi,Sinh Sinhala,Sogd Sogdian,Sogo Old_Sogdian,
Sora Sora_Sompeng,Soyo Soyombo,Sund Sundanese,Sunu Sunuwar,Sylo Syloti_Nagri,Syrc Syriac,Tagb Tagbanwa,Takr Takri,
Tale Tai_Le,Talu New_Tai_Lue,Taml Tamil,Tang Tangut,Tavt Tai_Viet,Tayo Tai_Yo,Telu Telugu,Tfng Tifinagh,Tglg Tagalog,
Thaa Thaana,Thai,Tibt Tibetan,Tirh Tirhuta,Tnsa Tangsa,Todr Todhri,Tols Tolong_Siki,Toto,Tutg Tulu_Tigalari,
Ugar Ugaritic,Vaii Vai,Vith Vithkuqi,Wara Warang_Citi,Wcho Wancho,Xpeo Old_Persian,Xsux Cuneiform,Yezi Yezidi,Yiii Yi,
Zanb Zanabazar_Square,Zinh Inherited Qaai,Zyyy Common,Zzzz Unknown`;

// Returns the ranges of points that an odd number of the properties have.
function ranges(properties) {
  const expressions = properties.map((property) => new RegExp(`\\p{${property}}`, "u"));
  const found = [];
  for (let point = 0, begin = -1; point <= 0x110000; ++point) {
    const text = point < 0x110000 ? String.fromCodePoint(point) : "";
    const has = expressions.filter((expression) => expression.test(text)).length % 2 === 1;
    if (has && begin < 0) begin = point;
    if (has || begin < 0) continue;
    found.push([begin, point - 1]);
    begin = -1;
  }
  return found;
}

function encode(number) {
  let text = "";
  for (; number >= 32; number = Math.floor(number / 32)) text += DIGITS[32 + (number % 32)];
  return text + DIGITS[number];
}

function packed(list) {
  let end = 0;
  let text = "";
  for (const [first, last] of list) {
    text += encode(first - end) + encode(last - first);
    end = last + 1;
  }
  return text;
}

// `base`: what all of these properties have as a base, a name with * for the property's own.
function rows(names, prefix, base = "") {
  return names.replace(/\n/g, "").split(",").map((entry) => {
    const [given, bases = ""] = entry.trim().split(":");
    const list = given.split(" ");
    const all = [...bases.split(" "), base.replace("*", list[0])].filter((name) => name !== "");
    return { names: list.join("|"), base: all.join(" "), text: packed(ranges([prefix + list[0], ...all])) };
  });
}

function write(folder, file, name, list) {
  const lines = [`// Written by tools/make_unicode_properties.mjs, from Unicode ${process.versions.unicode}.`,
    `#include "grammar/text/unicode_property.h"`, "", "namespace kvcache {", "",
    "// clang-format off", `constexpr UnicodeProperty ${name}Rows[] = {`];
  for (const { names, base, text } of list) {
    const row = `    {"${names}", "${base}",`;
    if (row.length + text.length < 112) {
      lines.push(`${row} "${text}"},`);
      continue;
    }
    const pieces = text.match(/.{1,112}/g);
    lines.push(row, ...pieces.map((piece, i) => `     "${piece}"${i + 1 === pieces.length ? "}," : ""}`));
  }
  lines.push("};", "// clang-format on", "", `const std::span<const UnicodeProperty> ${name} = ${name}Rows;`, "",
    "}  // namespace kvcache", "");
  writeFileSync(`${folder}/${file}`, lines.join("\n"));
}

const folder = process.argv[2];
write(folder, "unicode_data_category.cc", "kUnicodeCategories", rows(CATEGORIES, "gc="));
write(folder, "unicode_data_binary.cc", "kUnicodeBinaries", rows(BINARIES, ""));
const scripts = SCRIPTS.replace("Zzzz Unknown", "").replace(/,\s*$/, "");
write(folder, "unicode_data_script.cc", "kUnicodeScripts", rows(scripts, "Script="));
// Most scripts have no extension: then their points are those of the script.
const extensions = rows(scripts, "Script_Extensions=", "sc=*").filter(({ text }) => text !== "");
write(folder, "unicode_data_extension.cc", "kUnicodeScriptExtensions", extensions);
