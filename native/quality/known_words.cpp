#include "quality/known_words.hpp"

#include <utility>

namespace lowtide {

const KnownWords& KnownWords::get() {
  static const KnownWords words;
  return words;
}

KnownWords::KnownWords() : slots_(kSlots) {
  add_pronouns();
  add_question_words();
  add_verbs();
  add_single_words();
  add_faces();
  for (int hour = 1; hour <= 12; ++hour) {
    for (const char* period : {"a.m.", "am", "p.m.", "pm"}) add({std::to_string(hour), period});
  }
  both({"can", "not"}), both({"gon", "na"}), both({"got", "ta"}), both({"let", "'s"});
  both({"not", "'ve"}), both({"not", "ve"}), both({"c'm", "on"});
  both({"how", "'d", "'y"});
  add({"y'", "all"}), add({"y", "all"});
}

void KnownWords::add_pronouns() {
  for (const char* word : {"i", "you", "he", "she", "it", "we", "they"}) {
    contract(word, "ll"), contract(word, "d");
  }
  for (const char* word : {"i", "you", "we", "they"}) contract_once(word, "ve");
  for (const char* word : {"you", "we", "they"}) contract_once(word, "re");
  for (const char* word : {"he", "she", "it"}) contract_once(word, "s");
  contract_once("i", "m");
  both({"i", "'m", "a"}), both({"i", "m", "a"});
}

void KnownWords::add_question_words() {
  const std::initializer_list<const char*> plain = {"who", "what", "when", "where",
                                                    "why", "how",  "there"};
  for (const char* word : plain) contract_once(word, "re"), contract_once(word, "ve");
  for (const char* word : {"these", "those"}) contract_once(word, "re"), contract_once(word, "ve");
  for (const char* word : {"that", "this"}) contract_once(word, "s");
  for (const char* word : plain)
    contract_once(word, "s"), contract(word, "ll"), contract(word, "d");
  for (const char* word : {"that", "this", "these", "those"}) {
    contract(word, "ll"), contract(word, "d");
  }
}

void KnownWords::add_verbs() {
  for (const char* word : {"ca", "could", "do", "does", "did", "had", "may", "might", "must",
                           "need", "ought", "sha", "should", "wo", "would"}) {
    both({word, "n't"}), both({word, "nt"});
    both({word, "n't", "'ve"}), both({word, "nt", "ve"});
  }
  for (const char* word : {"could", "might", "must", "should", "would"}) contract_once(word, "ve");
  for (const char* word : {"ai", "are", "is", "was", "were", "have", "has", "dare"}) {
    both({word, "n't"}), both({word, "nt"});
  }
}

void KnownWords::add_single_words() {
  for (const char* word :
       {"Mt.",   "Ak.",   "Ala.",  "Apr.",  "Ariz.", "Ark.",  "Aug.",  "Calif.", "Colo.",
        "Conn.", "Dec.",  "Del.",  "Feb.",  "Fla.",  "Ga.",   "Ia.",   "Id.",    "Ill.",
        "Ind.",  "Jan.",  "Jul.",  "Jun.",  "Kan.",  "Kans.", "Ky.",   "La.",    "Mar.",
        "Mass.", "Mich.", "Minn.", "Miss.", "N.C.",  "N.D.",  "N.H.",  "N.J.",   "N.M.",
        "N.Y.",  "Neb.",  "Nebr.", "Nev.",  "Nov.",  "Oct.",  "Okla.", "Ore.",   "Pa.",
        "S.C.",  "Sep.",  "Sept.", "Tenn.", "Va.",   "Wash.", "Wis.",  "a.m.",   "Adm.",
        "Bros.", "co.",   "Co.",   "Corp.", "D.C.",  "Dr.",   "e.g.",  "E.g.",   "E.G.",
        "Gen.",  "Gov.",  "i.e.",  "I.e.",  "I.E.",  "Inc.",  "Jr.",   "Ltd.",   "Md.",
        "Mo.",   "Mont.", "Mr.",   "Mrs.",  "Ms.",   "p.m.",  "Ph.D.", "Prof.",  "Rep.",
        "Rev.",  "Sen.",  "St.",   "vs.",   "v.s.",  "C++",   "w/o",   "and/or", "Messrs."}) {
    add({word});
  }
  for (const char* word : {"'d", "'S", "'s", "'re", "'Cause", "'cause", "'cos", "'Cos", "'coz",
                           "'Coz", "'cuz", "'Cuz", "'bout", "'em", "'ll", "'nuff", "''"}) {
    add({word});
  }
  add({"\xE2\x80\x98s"}), add({"\xE2\x80\x98S"});
  for (const char* word : {"ma'am", "o'clock", "lovin'", "havin'", "doin'", "goin'", "nothin'",
                           "nuthin'", "ol'", "somethin'"}) {
    both({word});
  }
  for (char letter = 'a'; letter <= 'z'; ++letter) add({std::string(1, letter) + "."});
  for (const char* word : {"\xC3\xA4.", "\xC3\xB6.", "\xC3\xBC."}) add({word});
  for (const char* degree : {"C", "F", "K", "c", "f", "k"}) add({"\xC2\xB0", degree, "."});
}

void KnownWords::add_faces() {
  for (const char* face :
       {":)",  ":-)", ":))", ":(",  ":-(", ":((", ";)",  ";-)", ":D",  ":-D", ":P",
        ":-P", ":p",  ":-p", ":/",  ":-/", ":|",  ":-|", ":o",  ":O",  ":0",  ":1",
        ":3",  ":x",  ":X",  ":*",  ":]",  ":}",  ":>",  "=)",  "=(",  "=D",  "=]",
        "=[",  "=/",  "=|",  "=3",  "(:",  "(;",  "(=",  "[:",  "[=",  "):",  "8)",
        "8-)", "8D",  "XD",  "xD",  "<3",  "</3", ":'(", ":')", "^_^", "-_-", "o_o",
        "O_O", "0.0", "0_0", "o.o", ">.<", "<.<", ">.>", "._.", "@_@", "v_v", "\\\")"}) {
    add({face});
  }
}

void KnownWords::contract(const char* word, const std::string& ending) {
  contract_once(word, ending);
  both({word, "'" + ending, "'ve"}), both({word, ending, "ve"});
}

void KnownWords::contract_once(const char* word, const std::string& ending) {
  both({word, "'" + ending}), both({word, ending});
}

void KnownWords::both(std::initializer_list<std::string> parts) {
  std::vector<std::string> words(parts);
  add(words);
  words[0][0] = static_cast<char>(words[0][0] & ~0x20);
  add(words);
}

// Also with the typographic apostrophe.
void KnownWords::add(const std::vector<std::string>& parts) {
  add_exact(parts);
  std::vector<std::string> others(parts);
  for (std::string& part : others) {
    for (size_t at; (at = part.find('\'')) != std::string::npos;)
      part.replace(at, 1, "\xE2\x80\x99");
  }
  if (others != parts) add_exact(others);
}

void KnownWords::add_exact(const std::vector<std::string>& parts) {
  Entry entry;
  for (size_t part = 0; part < parts.size() && part < kMostParts; ++part) {
    entry.text += parts[part];
    entry.sizes[part] =
        static_cast<uint8_t>(count_code_points(parts[part].data(), parts[part].size()));
  }
  for (const char* word : {"Ill", "ill", "Its", "its", "Hell", "hell", "Shell", "shell", "Shed",
                           "shed", "were", "Were", "Well", "well", "Whore", "whore"}) {
    if (entry.text == word) return;  // ordinary words
  }
  if (entry.text.size() > kMostKnownBytes) return;
  const uint64_t hash = hash_word(entry.text);
  filter_[hash >> 6 & 1023] |= uint64_t{1} << (hash & 63);
  const auto last = static_cast<unsigned char>(entry.text.back());
  ends_[static_cast<unsigned char>(entry.text.front())][last >> 6] |= uint64_t{1} << (last & 63);
  for (size_t at = hash >> 32 & (kSlots - 1);; at = (at + 1) & (kSlots - 1)) {
    if (slots_[at].text == entry.text) return;
    if (!slots_[at].text.empty()) continue;
    slots_[at] = std::move(entry);
    return;
  }
}

}  // namespace lowtide
