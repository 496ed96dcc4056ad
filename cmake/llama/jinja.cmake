# Mends llama.cpp's interpreter of chat templates. A template comes with a model's file: it is foreign, and the interpreter
# bounds nothing. So all that makes, joins or walks values says what it is about to do (`on_work`), and coppice's
# src/text/template_limits.cpp throws from there when it is too much, of bytes, time or stack. Without one, as in llama.cpp's
# own server, nothing is bounded. Some steps are made linear, since a client's text could make them take seconds.

# What is counted: all values, ...
mend_common(jinja/value.h [=[struct func_args; // function argument values]=] [=[// Called before `bytes` more are taken, and with 0 before each step of a walk through values. It may throw.
extern void (*on_work)(size_t bytes);

struct func_args; // function argument values]=] "work is counted")
mend_common(jinja/value.h [=[    value_t() = default;]=] [=[    value_t() { on_work(sizeof(value_t)); }]=] "values are counted")
# ... texts, ...
mend_common(jinja/value.h [=[value_string_t(const std::string & v) {]=] [=[value_string_t(const std::string & v) { on_work(v.size());]=]
  "texts are counted")
mend_common(jinja/value.h [=[value_string_t(const string & v) {]=] [=[value_string_t(const string & v) { on_work(v.length());]=] "texts are counted")
mend_common(jinja/string.cpp [=[        parts.push_back(part);]=] [=[        on_work(sizeof(part) + part.val.size());
        parts.push_back(part);]=] "joined texts are counted")
mend_common(jinja/value.cpp [=[result.parts.insert(result.parts.end(), arg_str.parts.begin(), arg_str.parts.end());]=] [=[result.append(arg_str);]=]
  "format() counts")
mend_common(jinja/value.cpp [=[                result += val_arr->as_string().str();]=] [=[                const std::string item = val_arr->as_string().str();
                on_work(item.size() + delim.size());
                result += item;]=] "join counts")
mend_common(jinja/value.cpp [=[                indent.assign(val_width->as_int(), ' ');]=] [=[                on_work(static_cast<size_t>(std::max<int64_t>(val_width->as_int(), 0)));
                indent.assign(static_cast<size_t>(std::max<int64_t>(val_width->as_int(), 0)), ' ');]=] "indent counts")
mend_common(jinja/value.cpp [=[                if (!indented.empty()) {
                    indented.push_back('\n');]=] [=[                on_work(indent.size() + line.size() + 1);
                if (!indented.empty()) {
                    indented.push_back('\n');]=] "indent counts")
# ... lists, ...
mend_common(jinja/value.h [=[val_arr.push_back(val);]=] [=[on_work(sizeof(value)); val_arr.push_back(val);]=] "lists are counted")
mend_common(jinja/value.h [=[val_arr.push_back(std::move(val));]=] [=[on_work(sizeof(value)); val_arr.push_back(std::move(val));]=] "lists are counted")
mend_common(jinja/value.h [=[        val_arr = arr;]=] [=[        on_work(arr.size() * sizeof(value)); val_arr = arr;]=] "copied lists are counted")
mend_common(jinja/value.h [=[        val_arr = v->val_arr;]=] [=[        on_work(v->val_arr.size() * sizeof(value)); val_arr = v->val_arr;]=] "copied lists are counted")
mend_common(jinja/value.h [=[            val_obj.push_back({key, val});]=] [=[            on_work(8 * sizeof(value));
            val_obj.push_back({key, val});]=] "fields are counted")
# ... steps, ...
mend_common(jinja/runtime.cpp [=[    try {
        return execute_impl(ctx);]=] [=[    on_work(64);
    try {
        return execute_impl(ctx);]=] "steps are counted")
# ... and walks, which may go round in circles.
mend_common(jinja/runtime.h [=[    // TODO: probably allow print value_none as "None" string? currently this breaks some templates]=] [=[    on_work(0);]=]
  "printing is bounded")
mend_common(jinja/value.h [=[        if (std::all_of(val_arr.begin()]=] [=[        on_work(0);
        if (std::all_of(val_arr.begin()]=] "comparing is bounded")
mend_common(jinja/value.h [=[        if (std::all_of(val_obj.begin()]=] [=[        on_work(0);
        if (std::all_of(val_obj.begin()]=] "comparing is bounded")
mend_common(jinja/value.cpp [=[    if (is_val<value_none>(val) || val->is_undefined()) {
        oss << "null";]=] [=[    on_work(indent > 0 ? (static_cast<size_t>(curr_lvl) + 1) * static_cast<size_t>(indent) : 0);
    if (is_val<value_none>(val) || val->is_undefined()) {
        oss << "null";]=] "tojson is bounded")
mend_common(jinja/value.cpp [=[std::string(curr_lvl * indent, ' ')]=] [=[std::string(static_cast<size_t>(curr_lvl) * static_cast<size_t>(indent), ' ')]=]
  "tojson is bounded")
mend_common(jinja/value.cpp [=[        oss << "\"";
        for (char c : val->as_string().str()) {]=] [=[        on_work(val->val_str.length());
        oss << "\"";
        for (char c : val->as_string().str()) {]=] "tojson counts")
mend_common(jinja/value.cpp [=[std::string value_to_string_repr(const value & val) {]=] [=[std::string value_to_string_repr(const value & val) {
    on_work(0);]=] "printing is bounded")
mend_common(jinja/value.cpp [=[        return val->as_repr();]=] [=[        std::string repr = val->as_repr();
        on_work(repr.size());
        return repr;]=] "printing counts")
mend_common(jinja/value.cpp [=[    val->stats.used = true;]=] [=[    on_work(0);
    val->stats.used = true;]=] "marking is bounded")

# A value's parts are dropped one after the other: a list in a list in a list, of a hundred thousand, would overflow the stack.
mend_common(jinja/value.h [=[virtual ~value_t() = default;]=] [=[virtual ~value_t();]=] "values are dropped without recursion")
mend_common(jinja/value.cpp [=[namespace jinja {]=] [=[namespace jinja {

void (*on_work)(size_t) = [](size_t) {};

value_t::~value_t() {
    static thread_local std::vector<value> * dropped = nullptr;
    static thread_local std::vector<func_handler> * functions = nullptr;
    if (val_arr.empty() && val_obj.empty() && !val_func) {
        return;
    }
    std::vector<value> own;
    std::vector<func_handler> own_functions;
    const bool first = dropped == nullptr;
    if (first) {
        dropped = &own;
        functions = &own_functions;
    }
    const auto drop = [](value & part) {
        if (part && part.use_count() == 1 && (!part->val_arr.empty() || !part->val_obj.empty() || part->val_func)) {
            dropped->push_back(std::move(part));
        }
    };
    try {
        for (value & part : val_arr) {
            drop(part);
        }
        for (auto & [key, part] : val_obj) {
            drop(key);
            drop(part);
        }
        if (val_func) {
            functions->push_back(std::move(val_func));
        }
    } catch (const std::bad_alloc &) { // then by recursion
    }
    if (!first) {
        return;
    }
    while (!own.empty() || !own_functions.empty()) {
        if (!own.empty()) {
            const value last = std::move(own.back());
            own.pop_back();
        } else {
            const func_handler last = std::move(own_functions.back());
            own_functions.pop_back();
        }
    }
    dropped = nullptr;
    functions = nullptr;
}]=] "values are dropped without recursion")

# These end the process: a remainder of 0, and orders that contradict themselves (numbers and texts, and what is no number).
mend_common(jinja/value.cpp [=[bool res = args.get_pos(0)->val_int % args.get_pos(1)->val_int == 0;]=] [=[const int64_t by = args.get_pos(1)->val_int;
            if (by == 0) {
                throw raised_exception("divisibleby: division by zero");
            }
            bool res = by == -1 || args.get_pos(0)->val_int % by == 0;]=] "divisibleby(0) is refused")
mend_common(jinja/value.cpp [=[std::sort(]=] [=[std::stable_sort(]=] "sorting takes any order")
# A step of nearly 2^63 overflows, and counts for ever.
mend_common(jinja/value.cpp [=[    int64_t direction = (step > 0)]=] [=[    step = std::clamp<int64_t>(step, -len - 1, len + 1);
    int64_t direction = (step > 0)]=] "steps of slices are bounded")
mend_common(jinja/value.cpp [=[            if (step > 0) {
                for (int64_t i = start; i < stop; i += step) {
                    out->push_back(mk_val<value_int>(i));
                }
            } else {
                for (int64_t i = start; i > stop; i += step) {
                    out->push_back(mk_val<value_int>(i));
                }
            }]=] [=[            for (int64_t i = start; step > 0 ? i < stop : i > stop;) {
                out->push_back(mk_val<value_int>(i));
                if (__builtin_add_overflow(i, step, &i)) {
                    break;
                }
            }]=] "range() is bounded")

# Linear: these moved all of the rest of a text for each place found in it.
mend_common(jinja/value.cpp [=[                    while ((pos = str.find(old_str, pos)) != std::string::npos) {
                        str.replace(pos, old_str.length(), new_str);
                        pos += new_str.length();
                    }]=] [=[                    std::string result;
                    size_t from = 0;
                    while ((pos = str.find(old_str, from)) != std::string::npos) {
                        on_work(new_str.length());
                        result.append(str, from, pos - from).append(new_str);
                        from = pos + old_str.length();
                    }
                    str = result.append(str, from);]=] "replace is linear")
mend_common(jinja/value.cpp [=[                    std::string new_res;]=] [=[                    on_work(str.length() + new_str.length() * (str.length() + 1));
                    std::string new_res;]=] "replace is bounded")
mend_common(jinja/value.cpp [=[            while ((pos = str.find(delim)) != std::string::npos && maxsplit != 0) {
                token = str.substr(0, pos);
                result->push_back(mk_val<value_string>(token));
                str.erase(0, pos + delim.length());
                --maxsplit;
            }]=] [=[            size_t from = 0;
            while ((pos = str.find(delim, from)) != std::string::npos && maxsplit != 0) {
                token = str.substr(from, pos - from);
                result->push_back(mk_val<value_string>(token));
                from = pos + delim.length();
                --maxsplit;
            }
            str.erase(0, from);]=] "split is linear")
# Each name that was looked up copied the table of functions.
mend_common(jinja/runtime.cpp [=[auto builtins = ]=] [=[const auto & builtins = ]=] "tables of functions are not copied")
